"""How cost grows: training with vocabulary and sources, stages of text with sentences, plans with trials."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.material import SIZE
from benchmarks.measure import Rates, interleave, table
from benchmarks.multi_source_decoding import FAMILIES
from benchmarks.overhead import empty_study
from nlgraft.evaluation.sufficient import segment_rows
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.execute import execute_stage
from nlgraft.pipeline.stage import NullReporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages import seq2seq_graph
from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import TokenizerConfig
from nlgraft.training.losses import Seq2SeqObjective

VOCABULARIES = (2_000, 8_000, 32_000)
SOURCES = (1, 2, 3)
SENTENCES = (2_000, 20_000)
TRIALS = (10, 100, 1_000)
NUM_ROUNDS = 5
_ROWS, _TOKENS = 32, 24


def _batch(num_sources: int, vocab_size: int) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def tokens() -> Tokens:
        ids = torch.randint(4, vocab_size, (_ROWS, _TOKENS), generator=generator)
        return Tokens(ids, torch.ones_like(ids, dtype=torch.bool))

    return Batch([tokens() for _ in range(num_sources)], tokens(), tokens().ids)


def _training(family: str, vocab_size: int, num_sources: int = 1) -> Callable[[], float]:
    """Forward and backward pass of one batch, without the optimiser; counts target tokens."""
    torch.manual_seed(0)
    settings = {**FAMILIES[family], "num_sources": num_sources}
    model = Seq2Seq(TransformerConfig(**SIZE, tying="all", **settings), vocab_size, vocab_size)
    batch, objective = _batch(num_sources, vocab_size), Seq2SeqObjective(smoothing=0.1)

    def step() -> float:
        model.zero_grad()
        (objective(model, batch).loss_sum / (_ROWS * _TOKENS)).backward()
        return float(_ROWS * _TOKENS)

    return step


def measure_training() -> tuple[Rates, Rates]:
    """Measure target tokens per CPU-second, by the size of the vocabulary and by the number of sources."""
    by_size = {f"vocabulary {size:,}": _training("one source", size) for size in VOCABULARIES}
    by_sources = {
        f"{count} concatenated": _training("two sources, concatenated", 8_000, count) for count in SOURCES[1:]
    }
    by_sources |= {
        f"{count} by TRICE": _training("two sources, TRICE", 8_000, count) for count in SOURCES[1:]
    }
    contestants = {"1 source": _training("one source", 8_000), **by_sources}
    return (
        interleave("target tokens", by_size, NUM_ROUNDS),
        interleave("target tokens", contestants, NUM_ROUNDS),
    )


def _cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _text_costs(num_sentences: int) -> dict[str, float]:
    """CPU seconds of the stages of text, and of scoring as many sentences."""
    config = ConlangConfig(corpus="conlang", train=num_sentences, dev=100, test=100)
    corpus = seq2seq_graph.corpus("growth", config)
    learned = seq2seq_graph.tokenizers("growth", TokenizerConfig(vocab_size=1_500), {"growth": corpus})
    encoded = seq2seq_graph.encode("growth", corpus, learned).encoded
    with tempfile.TemporaryDirectory() as directory:
        store = ArtifactStore.open(directory)

        def run(stage: Stage) -> None:
            for each in StageGraph(stage).stages:
                if not store.has(each):
                    execute_stage(each, store, reporter=NullReporter())

        tokenizer = next(iter(learned.values()))
        costs = {
            "constructed text, written": _cpu_s(lambda: run(corpus)),
            "tokenizer learned": _cpu_s(lambda: run(tokenizer)),
            "text encoded": _cpu_s(lambda: run(encoded)),
        }
    lines = generate(config, "train")["target"]
    outputs = [line.replace("a", "e", 1) for line in lines]
    for metric in ("bleu", "chrf", "ter"):
        costs[f"{metric} scored"] = _cpu_s(lambda metric=metric: segment_rows(metric, outputs, lines))
    return costs


def _plan_cost(num_trials: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        study = empty_study(Path(directory), num_trials, 2)
        return _cpu_s(study.plan)


def _growth(title: str, sizes: Sequence[int], costs: Sequence[float]) -> str:
    """One row: CPU seconds at each size, and those of another thousand between the last two."""
    slope = 1000 * (costs[-1] - costs[-2]) / (sizes[-1] - sizes[-2])
    return f"| {title} | {' | '.join(f'{cost:.2f}' for cost in costs)} | {slope:.3f} |"


def report() -> list[str]:
    """Write what was measured."""
    by_size, by_sources = measure_training()
    _text_costs(200)  # imports
    texts = [_text_costs(count) for count in SENTENCES]
    plans = [_plan_cost(count) for count in TRIALS]
    return [
        "## Growth of cost",
        "",
        f"Forward and backward pass of {_ROWS} x {_TOKENS} target tokens, by the vocabulary:",
        "",
        *table(by_size, f"vocabulary {VOCABULARIES[1]:,}"),
        "",
        f"The same by sources of {_TOKENS} tokens each, vocabulary 8,000:",
        "",
        *table(by_sources, "1 source"),
        "",
        f"| CPU-s for sentences | {' | '.join(f'{count:,}' for count in SENTENCES)} | another 1,000 |",
        f"|---|{'---|' * len(SENTENCES)}---|",
        *(_growth(name, SENTENCES, [costs[name] for costs in texts]) for name in texts[0]),
        "",
        f"| CPU-s for trials | {' | '.join(f'{count:,}' for count in TRIALS)} | another 1,000 |",
        f"|---|{'---|' * len(TRIALS)}---|",
        _growth("plan of trials of one stage", TRIALS, plans),
    ]
