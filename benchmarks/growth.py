"""How cost grows: training with vocabulary and sources, stages of text with sentences, plans with trials.

Text as large as one means to use, by itself: ``python -m benchmarks.growth 10000000``, pairs from a seed.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.material import SIZE
from benchmarks.measure import Rates, interleave, table
from benchmarks.multi_source_decoding import FAMILIES
from benchmarks.overhead import empty_study
from nlgraft.evaluation.sufficient import segment_rows
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import NullReporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import execute_stage
from nlgraft.stages import text_graph
from nlgraft.stages.run.text_stages import read_encoded, vocab_sizes
from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpus_config import ConlangConfig, FilesConfig
from nlgraft.text.tokenizer_config import TokenizerConfig
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.train_config import View
from nlgraft.training.views import Seq2SeqData

VOCABULARIES = (2_000, 8_000, 32_000)
SOURCES = (1, 2, 3)
SENTENCES = (2_000, 20_000)
TRIALS = (10, 100, 1_000)
PAIRS = (100_000, 1_000_000)
NUM_STEPS = 15
"""Training steps by which speed is measured, after as many that warm up."""
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
    corpus = text_graph.corpus("growth", config)
    learned = text_graph.tokenizers("growth", TokenizerConfig(vocab_size=1_500), {"growth": corpus})
    encoded = text_graph.encode("growth", corpus, learned).encoded
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


# Text larger than memory: each part in a process of its own, whose peak is read.


@dataclass(frozen=True)
class _Cost:
    """What a part of the work took, in a process of its own."""

    wall_s: float
    private_mib: float  # peak, beyond the imports
    whole_mib: float  # peak, pages of files and imports included
    result: float | None = None


def write_pairs(directory: Path, num_pairs: int, seed: int = 0) -> FilesConfig:
    """Write pairs of about 130 and 150 bytes: words of Zipf's frequencies, the target word by word."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 10, (2, 30_000))
    words = [[bytes(rng.integers(97, 123, size).tolist()).decode() for size in side] for side in sizes]
    for split, count in (("train", num_pairs), ("dev", 1_000), ("test", 1_000)):
        with (directory / f"{split}.a").open("w") as source, (directory / f"{split}.b").open("w") as target:
            for _ in range(0, count, 1_000):
                ids = (rng.zipf(1.1, (1_000, 32)) - 1) % len(words[0])
                lengths = rng.integers(8, 32, 1_000)
                for row, length in zip(ids.tolist(), lengths.tolist(), strict=True):
                    source.write(" ".join(words[0][number] for number in row[:length]) + "\n")
                    target.write(" ".join(words[1][number] for number in row[length - 1 :: -1]) + " .\n")
    splits = {
        split: {"sources": str(directory / f"{split}.a"), "target": str(directory / f"{split}.b")}
        for split in ("train", "dev", "test")
    }
    return FilesConfig.model_validate({"corpus": "files", **splits})


def _status_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def _measured(work: Callable[[], float | None]) -> _Cost:
    torch.set_num_threads(1)
    before, peak, is_over = _status_mib("RssAnon"), [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            peak[0] = max(peak[0], _status_mib("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    began_s = time.perf_counter()
    result = work()
    wall_s = time.perf_counter() - began_s
    is_over.set()
    watcher.join()
    return _Cost(wall_s, peak[0] - before, _status_mib("VmHWM"), result)


def alone(work: Callable[[], float | None]) -> _Cost:
    """Do some work in a new process, which can be pickled, and measure it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (work,))


def _executed(stage: Stage, store: str) -> None:
    execute_stage(stage, ArtifactStore.open(store), reporter=NullReporter())


def _trained(encoded: Path) -> float:
    """Train a small model for some steps; steps a second."""
    size = vocab_sizes(encoded)["target"]
    settings = {**SIZE, "d_model": 64, "ffn_dim": 256}
    model = Seq2Seq(TransformerConfig(**settings, tying="all"), size, size)
    data, objective = (
        Seq2SeqData(read_encoded(encoded, "train"), View(), batch_tokens=2_048),
        Seq2SeqObjective(),
    )
    # Two epochs: the second draws its order beside what the first has left.
    for index in range(2):
        batches = data.epoch(index)
        began_s = time.perf_counter()
        for rows in batches[:NUM_STEPS]:
            model.zero_grad()
            objective(model, data.batch(rows, index)).loss_sum.backward()
    return NUM_STEPS / (time.perf_counter() - began_s)


def large_text(num_pairs: int) -> dict[str, _Cost]:
    """Measure the stages of a text of some pairs, and a training process over it."""
    with tempfile.TemporaryDirectory() as directory:
        files, store = Path(directory, "files"), str(Path(directory, "store"))
        files.mkdir()
        config = write_pairs(files, num_pairs)
        corpus = text_graph.corpus("growth", config)
        learned = text_graph.tokenizers("growth", TokenizerConfig(vocab_size=8_000), {"growth": corpus})
        encoded = text_graph.encode("growth", corpus, learned).encoded
        stages = {"corpus": corpus, "tokenizer": learned["target"], "encoded": encoded}
        costs = {}
        for name, stage in stages.items():
            costs[name] = alone(partial(_executed, stage, store))
            sys.stderr.write(f"{num_pairs} {name}: {costs[name]}\n")
        costs["training"] = alone(partial(_trained, ArtifactStore.open(store).fetch(encoded)))
        sys.stderr.write(f"{num_pairs} training: {costs['training']}\n")
        return costs


def large_text_report(sizes: Sequence[int] = PAIRS) -> list[str]:
    """Write what text of some sizes costs; the training also without text, for its model alone."""
    plain = large_text(1_000)["training"]
    rows = []
    for size in sizes:
        for name, cost in large_text(size).items():
            is_training = name == "training"
            private = cost.private_mib - (plain.private_mib if is_training else 0)
            speed = f"{cost.result:.1f}, {plain.result:.1f} over 1,000 pairs" if is_training else ""
            rows.append(
                f"| {size:,} | {name} | {cost.wall_s:.1f} | {private:.0f} | {cost.whole_mib:.0f} | {speed} |"
            )
    return [
        "Pairs of about 130 and 150 bytes. Private: what a process does not share, beyond its imports,",
        "of the training also beyond that of one over 1,000 pairs. The whole has imports and pages of files.",
        "",
        "| pairs | part | s | private MiB, peak | whole MiB, peak | steps a second |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


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
        "",
        *large_text_report(),
    ]


if __name__ == "__main__":
    # Spawned processes find the functions by the name of the module.
    from benchmarks import growth

    sys.stdout.write("\n".join(growth.large_text_report([*map(int, sys.argv[1:])] or PAIRS)) + "\n")
