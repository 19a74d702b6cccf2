"""Time of the demo study, with and without the CPUs that idle workers lend to a stage others wait for."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nlgraft.execution.cluster import local_capacity
from nlgraft.execution.events import Driver, Event, TrialEnded, TrialStarted
from nlgraft.execution.sweep import run_sweep
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study

STUDY = Path(__file__).parents[1] / "search_spaces/embedding_transfer/demo.yaml"
VARIANTS: dict[str, Sequence[str]] = {
    "as shipped, a pretraining per seed": (),
    "one pretraining for all": ("base.upstream.is_per_seed=false",),
}
NUM_ROUNDS = 2
AIM = 1.25


@dataclass(frozen=True)
class Course:
    """A run of a study, from the start of its first trial to the end of its last one.

    Attributes:
        seconds: Its time.
        idle_share: Share of the workers' time in which they computed no trial.
        num_threads: Most threads of a stage.
    """

    seconds: float
    idle_share: float
    num_threads: int


def run_once(overrides: Sequence[str], *, is_lending: bool) -> Course:
    """Run the study in an empty store."""
    started_s: dict[str, float] = {}
    busy_s = 0.0
    first_s = last_s = 0.0
    num_threads = 0

    def observe(event: Event) -> None:
        nonlocal busy_s, first_s, last_s, num_threads
        if isinstance(event, TrialStarted):
            started_s[event.trial.key] = time.monotonic()
            first_s = first_s or time.monotonic()
        elif isinstance(event, TrialEnded):
            last_s = time.monotonic()
            busy_s += last_s - started_s[event.trial.key]
            manifests = [store.manifest(stage) for stage in event.trial.graph.stages]
            num_threads = max(num_threads, *(one.num_threads or 0 for one in manifests if one is not None))

    with tempfile.TemporaryDirectory() as directory:
        own = [f"storage.path={directory}", f"resources.use_idle_cpus={str(is_lending).lower()}"]
        study = Study.from_yaml(STUDY, overrides=[*overrides, *own])
        store = ArtifactStore.open(directory)
        run_sweep(study, store, cells(study), Driver(observe))
    seconds = last_s - first_s
    return Course(seconds, 1 - busy_s / (seconds * local_capacity()["CPU"]), num_threads)


def report() -> list[str]:
    """Write what was measured; the two ways of a round run one after the other."""
    load = os.getloadavg()[0]
    lines = [
        f"## The demo on {local_capacity()['CPU']:.0f} CPUs, idle ones lent as threads or not",
        "",
        "| study | not lent, s | lent, s | times as fast | idle, not lent | most threads |",
        "|---|---|---|---|---|---|",
    ]
    for name, overrides in VARIANTS.items():
        rounds = [[run_once(overrides, is_lending=lent) for lent in (False, True)] for _ in range(NUM_ROUNDS)]
        plain, lent = (" ".join(f"{one[way].seconds:.0f}" for one in rounds) for way in (0, 1))
        ratios = " ".join(f"{one[0].seconds / one[1].seconds:.2f}" for one in rounds)
        idle = " ".join(f"{one[0].idle_share:.0%}" for one in rounds)
        most = max(one[1].num_threads for one in rounds)
        lines.append(f"| {name} | {plain} | {lent} | {ratios} | {idle} | {most} |")
    return [
        *lines,
        "",
        f"{NUM_ROUNDS} rounds; aim {AIM}. Load average: {load:.1f} at the start, "
        f"{os.getloadavg()[0]:.1f} at the end.",
    ]
