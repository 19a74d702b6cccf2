"""Cost of a trial beyond its own stages: many trials that do nothing, on a reused Tune actor."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlgraft.basics.strict_config import StrictConfig
from nlgraft.execution.events import Driver, Event, TrialEnded
from nlgraft.execution.sweep import run_sweep
from nlgraft.pipeline.stage import Stage, StageContext, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.data.system import Metric
from nlgraft.study.public import Study

DESCRIPTION = "A trial that does nothing"
PAPER = "none"
METRICS = {"dev/value": Metric(direction="maximize", unit="points", split="dev")}
NUM_TRIALS = 24


class Config(StrictConfig):
    """Nothing to set."""

    data: Mapping[str, Any] = {}


def stage_graph(config: Config, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
    """One stage."""
    return StageGraph(Stage(name="nothing", run=f"{__name__}:run_nothing", seed=seed))


def run_nothing(context: StageContext) -> None:
    """Write a metric."""
    (context.directory / "metrics.json").write_text('{"dev/value": {"value": 1.0, "n": 1, "signature": ""}}')


@dataclass(frozen=True)
class Overhead:
    """Seconds between the ends of trials that follow each other.

    Attributes:
        median_s: The median.
        low_s: The lowest.
        high_s: The highest.
    """

    median_s: float
    low_s: float
    high_s: float


def empty_study(directory: Path, num_trials: int, max_concurrent: int) -> Study:
    """A study of one cell whose trials do nothing; its store is in the directory."""
    return Study.from_dict(
        {
            "name": "overhead",
            "system": "benchmarks.overhead",
            "objective": {"metric": "dev/value", "direction": "maximize"},
            "seeds": list(range(num_trials)),
            "resources": {"max_concurrent": max_concurrent},
            "storage": {"path": str(directory)},
        }
    )


def measure() -> Overhead:
    """Run the trials one after the other on one worker.

    Returns:
        What a trial costs; the first ones, which start the actor, are left out.
    """
    ends_s: list[float] = []

    def observe(event: Event) -> None:
        if isinstance(event, TrialEnded):
            ends_s.append(time.monotonic())

    with tempfile.TemporaryDirectory() as directory:
        study = empty_study(Path(directory), NUM_TRIALS, 1)
        run_sweep(study, ArtifactStore.open(directory), cells(study), Driver(observe))
    gaps = [after - before for before, after in itertools.pairwise(ends_s)][2:]
    return Overhead(statistics.median(gaps), min(gaps), max(gaps))


def report() -> list[str]:
    """Write what was measured."""
    cost = measure()
    return [
        "## Overhead of a one-worker trial on a reused actor",
        "",
        f"{cost.median_s:.2f} s ({cost.low_s:.2f}-{cost.high_s:.2f}) between the ends of empty trials.",
    ]
