"""Stage sharing in a search: its duration relative to the minimum that its stage graphs allow.

Stages sleep instead of training, so that their duration is known: any further time is the cost of sharing
(leases, waiting, fetching) and of the trials themselves.
"""

from __future__ import annotations

import heapq
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks import overhead
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.execution.events import Driver, Event, TrialEnded, TrialStarted
from nlgraft.execution.sweep import run_sweep
from nlgraft.pipeline.stage import Stage, StageContext, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study

DESCRIPTION = "Pretraining, stored states and finetuning that only wait"
PAPER = "none"
METRICS = overhead.METRICS
NUM_TRIALS = 16
SEEDS = [1, 2]
NUM_WORKERS = 2
DURATIONS_S = {"pretrain": 30.0, "states": 5.0, "finetune": 20.0}
AIM = 0.95


class Config(StrictConfig):
    """What a fusion search varies: the language model, whose states are shared, and how it is finetuned."""

    data: Mapping[str, Any] = {}
    language_model: Literal["bert", "gpt", "electra"] = "bert"
    peak_lr: float = 1e-3


def stage_graph(config: Config, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
    """Three stages, of which only the last depends on the seed and the rate."""
    pretrain = _waiting("pretrain", {"kind": config.language_model})
    states = _waiting("states", {}, pretrain)
    return StageGraph(_waiting("finetune", {"peak_lr": config.peak_lr}, states, seed=seed))


def _waiting(name: str, config: dict[str, Any], *inputs: Stage, seed: int | None = None) -> Stage:
    named = {stage.name: stage for stage in inputs}
    return Stage(name=name, run=f"{__name__}:wait", config=config, inputs=named, seed=seed)


def wait(context: StageContext) -> None:
    """Take the stage's time and write a metric."""
    time.sleep(DURATIONS_S[context.stage.name])
    overhead.run_nothing(context)


@dataclass(frozen=True)
class Sharing:
    """Times of a search from its first trial's start to its last one's end, in seconds.

    Attributes:
        measured_s: As it was.
        bound_s: Without any cost: the same trials in the same order, a stage computed once, a worker that
            needs what another computes waiting for it.
        alone_s: The same if every trial computed all its stages.
        num_runs: Artifacts that were made.
        num_distinct: Distinct stages.
    """

    measured_s: float
    bound_s: float
    alone_s: float
    num_runs: int
    num_distinct: int


def makespan(trials: Sequence[StageGraph], *, is_shared: bool) -> float:
    """Time of trials in this order, each on the first worker that is free; seconds."""
    free_s = [0.0] * NUM_WORKERS
    ready_s: dict[Stage, float] = {}
    for graph in trials:
        now_s = heapq.heappop(free_s)
        for stage in graph.stages:
            if is_shared and stage in ready_s:
                now_s = max(now_s, ready_s[stage])
            else:
                now_s += DURATIONS_S[stage.name]
                ready_s[stage] = now_s
        heapq.heappush(free_s, now_s)
    return max(free_s)


def _study(directory: Path) -> Study:
    space = {
        "language_model": {"type": "categorical", "choices": ["bert", "gpt", "electra"]},
        "peak_lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
    }
    sampler = {"name": "tpe", "seed": 1, "num_startup_trials": 8}
    return Study.from_dict(
        {
            "name": "stage-sharing",
            "system": __name__,
            "objective": {"metric": "dev/value", "direction": "maximize"},
            "search": {"sampler": sampler, "space": space, "trials": NUM_TRIALS},
            "seeds": SEEDS,
            "resources": {"max_concurrent": NUM_WORKERS},
            "storage": {"path": str(directory)},
        }
    )


def measure() -> Sharing:
    """Run the search in an empty store."""
    times_s: list[float] = []
    graphs: dict[str, StageGraph] = {}
    num_runs = 0

    def observe(event: Event) -> None:
        nonlocal num_runs
        if isinstance(event, TrialStarted):
            times_s.append(time.monotonic())
            graphs.setdefault(event.trial.key, event.trial.graph)
        elif isinstance(event, TrialEnded):
            times_s.append(time.monotonic())
            num_runs += sum(stage["decision"] == "run" for stage in event.record.stages)

    with tempfile.TemporaryDirectory() as directory:
        study = _study(Path(directory))
        run_sweep(study, ArtifactStore.open(directory), cells(study), Driver(observe))
    trials = [*graphs.values()]
    return Sharing(
        measured_s=times_s[-1] - times_s[0],
        bound_s=makespan(trials, is_shared=True),
        alone_s=makespan(trials, is_shared=False),
        num_runs=num_runs,
        num_distinct=len({stage for graph in trials for stage in graph.stages}),
    )


def report() -> list[str]:
    """Write what was measured."""
    measured = measure()
    durations = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in DURATIONS_S.items())
    return [
        f"## Stage sharing: {NUM_TRIALS} trials by TPE and {len(SEEDS)} replicates on {NUM_WORKERS} workers",
        "",
        f"Stages that wait ({durations}); the search draws one of three language models and a rate. Load "
        f"average at the end: {os.getloadavg()[0]:.1f}.",
        "",
        f"- {measured.num_runs} stages ran, {measured.num_distinct} are distinct.",
        f"- {measured.measured_s:.0f} s; {measured.alone_s:.0f} s if nothing were shared or cost anything; "
        f"{measured.bound_s:.0f} s at least for these trials in this order: "
        f"{100 * measured.bound_s / measured.measured_s:.0f} % of the bound, aim {100 * AIM:.0f} %.",
    ]
