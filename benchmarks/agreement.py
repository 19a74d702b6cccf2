"""Does a narrow model order the arms of a study as a wide one does: decision accuracy of three systems.

``python -m benchmarks.agreement --storage DIR`` trains the arms at four widths, in some 20 minutes of one
core, and goes on where it ended; ``nlgraft agreement`` of the names that it prints reads the result.
"""

from __future__ import annotations

import argparse
import time

import torch

from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell

# Falls with the root of the width, so that no width has a rate that suits another one.
PEAK_LR = {32: "6e-3", 64: "4e-3", 128: "3e-3", 256: "2e-3"}


def embeddings(width: int) -> list[str]:
    """New rows of a masked language model, by its loss right after the exchange."""
    return [
        "search_spaces/embedding_transfer/masked_lm_vocabulary.yaml",
        "name=width-embeddings",
        "factors.arm.levels=[random_init, fvt, avg_eg, focus]",
        "claims=[]",
        "seeds=[1, 2]",
        "data.upstream.train=4000",
        "data.downstream.test=50",
        *sizes("masked_lm.model", width),
        "masked_lm.upstream_tokenizer.vocab_size=500",
        "masked_lm.downstream_tokenizer.vocab_size=500",
        "upstream.is_per_seed=true",
        "upstream.train.batch_characters=1500",
        "upstream.train.max_steps=150",
        "upstream.train.eval_every_steps=150",
        f"upstream.train.peak_lr={PEAK_LR[width]}",
        "generator.max_steps=30",
        "generator.num_dev_sentences=50",
        "downstream.train.max_steps=10",
        "downstream.train.eval_every_steps=10",
    ]


def vocabulary(width: int) -> list[str]:
    """A task's own vocabulary, by the accuracy of a classifier."""
    levels = "[old_vocabulary, from_scratch, all_random, vipi]"
    return [
        "search_spaces/vocabulary_transfer/table3_4_initialisation.yaml",
        "name=width-vocabulary",
        "factors={method: {target: transfer.method, levels: " + levels + ", baseline: old_vocabulary}}",
        "published=[]",
        "claims=[]",
        "seeds=[1, 2]",
        "analysis={family: all_cells}",
        "data.downstream.test=50",
        "masked_lm.upstream_tokenizer.vocab_size=400",
        "masked_lm.downstream_tokenizer.vocab_size=400",
        *sizes("masked_lm.model", width),
        "masked_lm.num_scored_sentences=50",
        "upstream.train.max_steps=150",
        "upstream.train.batch_sentences=24",
        "upstream.train.eval_every_steps=150",
        f"upstream.train.peak_lr={PEAK_LR[width]}",
        "intermediate.max_epochs=null",
        "intermediate.max_steps=20",
        "classification.train.max_epochs=2",
    ]


def causal(width: int) -> list[str]:
    """A new vocabulary of a causal language model, by its loss after training."""
    arms = ", ".join(
        f"{method}: {{vocabulary.change: replace, vocabulary.method: {method}}}"
        for method in ("random", "fvt", "focus")
    )
    return [
        "search_spaces/llm_vocabulary/methods.yaml",
        "name=width-causal",
        "factors={arm: {levels: {none: {vocabulary.change: none}, " + arms + "}, baseline: none}}",
        "design={kind: one_factor}",
        "claims=[]",
        "seeds=[1, 2]",
        "data.upstream.test=20",
        "data.downstream.test=50",
        f"causal_lm.model.d_model={width}",
        f"causal_lm.model.ffn_dim={3 * width}",
        "upstream.train.max_steps=150",
        "upstream.train.batch_characters=1500",
        "upstream.train.eval_every_steps=150",
        f"upstream.train.peak_lr={PEAK_LR[width]}",
        "training.train.max_steps=30",
        "training.train.batch_characters=1500",
        "training.train.eval_every_steps=30",
        f"training.train.peak_lr={PEAK_LR[width]}",
    ]


def sizes(model: str, width: int) -> list[str]:
    """Overrides of a model's width."""
    return [f"{model}.d_model={width}", f"{model}.ffn_dim={4 * width}"]


STUDIES = {"embeddings": embeddings, "vocabulary": vocabulary, "causal": causal}


def train(study: Study, store: ArtifactStore) -> None:
    """Run all trials of a study in this process, without Ray."""
    for cell in cells(study):
        config = resolve_cell(study, cell)
        for seed in study.seeds:
            graph = config.graph(seed)
            run_trial(graph, store, reporter=NullReporter(), config=config.document, is_waiting=True)


def main() -> None:
    """Train all arms at all widths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", required=True)
    parser.add_argument("--study", action="append", choices=STUDIES)
    arguments = parser.parse_args()
    store = ArtifactStore.open(arguments.storage)
    torch.set_num_threads(1)
    for name in arguments.study or STUDIES:
        for width in PEAK_LR:
            path, *overrides = STUDIES[name](width)
            study = Study.from_yaml(path, overrides)
            study.record(store)
            began_s, cpu_s = time.monotonic(), time.process_time()
            train(study, store)
            print(
                name,
                width,
                study.variant,
                f"{time.monotonic() - began_s:.0f} s,",
                f"{time.process_time() - cpu_s:.0f} CPU-s",
                flush=True,
            )


if __name__ == "__main__":
    main()
