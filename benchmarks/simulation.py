"""A sweep of 100,000 trials on 1,000 nodes in virtual time: its driver's cost, and what nodes wait for.

Queue, store and tracker are the real ones; the nodes are a list of ends, the store and MLflow are kept in
memory, and no trial computes anything. The driver's share is measured, in CPU time of its thread; the rest is
arithmetic.
"""

from __future__ import annotations

import heapq
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore

from benchmarks.overhead import empty_study
from nlgraft.execution.events import Driver, Event, TrialEnded, TrialStarted
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.object_files import ObjectFiles
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import cells
from nlgraft.study.data.plan import SweepTrial
from nlgraft.tracking.entries import RunEntry, RunKey
from nlgraft.tracking.mlflow_tracker import MlflowTracker

NUM_NODES = 1_000
NUM_TRIALS = 100_000
TRIAL_S = 60.0
SHORT_S = 5.0
ELSEWHERE_S = {"Tune's loop*": 0.0081, "MLflow's writes*": 0.0117}
"""CPU time in the driver of what is not simulated, per trial that is handed out alone (2026-11-24)."""
_SPREAD = 0.5


class _MemoryBackend:
    """A tracking store in memory."""

    def __init__(self) -> None:
        self.runs: dict[RunKey, RunEntry] = {}

    def write(self, entry: RunEntry) -> None:
        earlier = self.runs.get(entry.key)
        self.runs[entry.key] = earlier.merge(entry) if earlier else entry

    def end_orphans(self, active: Iterable[RunKey]) -> int:
        return 0

    def holds(self, entries: Sequence[RunEntry]) -> bool:
        return False

    def note_held(self) -> None:
        pass

    def is_reachable(self) -> bool:
        return True

    def forget(self) -> None:
        pass


@dataclass
class _Meter:
    """CPU seconds of the driver's thread by what it did."""

    seconds: dict[str, float] = field(default_factory=dict)

    def call(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        began_s = time.thread_time()
        try:
            return function(*arguments)
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.thread_time() - began_s


@dataclass
class Simulation:
    """What a simulated sweep took.

    Attributes:
        num_trials: Trials that ended.
        seconds: CPU seconds of the driver by part: planning, queue, store, tracker.
        writer_s: CPU seconds of the thread that writes to MLflow, without MLflow.
        makespan_s: Virtual time from the first trial to the last, the driver's work included.
        shortest_s: The same if the driver's work took no time.
        second_half: CPU seconds of the queue in the second half of the trials over those in the first.
    """

    num_trials: int
    seconds: dict[str, float]
    writer_s: float
    makespan_s: float
    shortest_s: float
    second_half: float


class _Sweep:
    """The driver of a sweep, whose nodes are a heap of ends in virtual time."""

    def __init__(self, directory: Path, num_trials: int, num_nodes: int, trial_s: float) -> None:
        self.study = empty_study(directory, num_trials, num_nodes)
        self.store = ArtifactStore("memory", ObjectFiles(MemoryStore(), "memory", directory / "cache"))
        self.backend = _MemoryBackend()
        self.tracker = MlflowTracker("http://127.0.0.1:9", "simulation", connect=lambda *_: self.backend)
        self.meter = _Meter()
        self.now_s = 0.0
        self._since_s = time.thread_time()
        driver = Driver(self._observe, clock=self._clock)
        self.cells = cells(self.study)
        self.queue = TrialQueue(self.study, self.store, self.cells, _no_search, driver, num_nodes)
        self._lengths = random.Random(1)
        self._trial_s = trial_s
        self.ends: list[tuple[float, int, SweepTrial, float]] = []
        self.half_s = 0.0
        self.free_s = [0.0] * num_nodes

    def _clock(self) -> float:
        """Virtual time, which goes on while the driver computes: it spares itself what takes it long."""
        return self.now_s + time.thread_time() - self._since_s

    def _observe(self, event: Event) -> None:
        if isinstance(event, TrialStarted):
            self.meter.call("tracker", self.tracker.trial_started, event.trial)
        elif isinstance(event, TrialEnded):
            self.meter.call("tracker", self.tracker.trial_ended, event.trial, event.record)

    def run(self) -> Simulation:
        self.tracker.start_study(self.study, self.study.fingerprint, self.cells)
        self.meter.call("planning", self.queue.open)
        num_ended = 0
        began_s = time.process_time() - time.thread_time()
        while not self.queue.is_done:
            self._hand_out()
            end_s, _, trial, length_s = heapq.heappop(self.ends)
            # All threads of the driver share one interpreter, so each waits for the others.
            self.now_s = max(self.now_s, end_s) + sum(ELSEWHERE_S.values())
            self._since_s = time.thread_time()
            record = _record(trial, end_s, length_s)
            self.meter.call("store", self.store.records.write, "trials", trial.fingerprint, record.to_json())
            self._timed("queue", self.queue.end, trial, record)
            num_ended += 1
            if num_ended == len(self.study.seeds) // 2:
                self.half_s = self.meter.seconds["queue"]
        self.tracker.close()
        writer_s = time.process_time() - time.thread_time() - began_s
        seconds = {**self.meter.seconds, "queue": self.meter.seconds["queue"] - self.meter.seconds["tracker"]}
        later = self.meter.seconds["queue"] / self.half_s - 1
        return Simulation(num_ended, seconds, writer_s, self.now_s, max(self.free_s), later)

    def _hand_out(self) -> None:
        """Start trials on all idle nodes; the time this takes passes for the nodes, too."""
        while (trial := self._timed("queue", self.queue.take)) is not None:
            length_s = self._trial_s * self._lengths.lognormvariate(-(_SPREAD**2) / 2, _SPREAD)
            heapq.heapreplace(self.free_s, self.free_s[0] + length_s)
            heapq.heappush(self.ends, (self.now_s + length_s, trial.seed, trial, length_s))

    def _timed(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        self._since_s = time.thread_time()
        returned = self.meter.call(part, function, *arguments)
        self.now_s, self._since_s = self._clock(), time.thread_time()
        return returned


def _no_search(cell: Any) -> Any:
    raise AssertionError(f"{cell} has no search")


def _record(trial: SweepTrial, end_s: float, length_s: float) -> TrialRecord:
    """What the worker of a trial leaves."""
    [stage] = trial.graph.stages
    ran = {"name": stage.name, "fingerprint": stage.fingerprint, "decision": "run", "duration_s": length_s}
    return TrialRecord(
        fingerprint=trial.fingerprint,
        config=dict(trial.config),
        seed=trial.seed,
        state="finished",
        metrics={"dev/value": 1.0},
        stages=[{**ran, "reason": "missing"}],
        started_at=end_s - length_s,
        ended_at=end_s,
        host="node",
    )


def simulate(num_trials: int, num_nodes: int, trial_s: float) -> Simulation:
    """Simulate a sweep of independent trials whose lengths are log-normal around ``trial_s``."""
    with tempfile.TemporaryDirectory() as name:
        return _Sweep(Path(name), num_trials, num_nodes, trial_s).run()


def report() -> list[str]:
    """Write what was measured, and what follows."""
    sweep = simulate(NUM_TRIALS, NUM_NODES, TRIAL_S)
    short = simulate(NUM_TRIALS // 10, NUM_NODES, SHORT_S)
    num = sweep.num_trials
    each_ms = {part: 1000 * seconds / num for part, seconds in sweep.seconds.items()}
    each_ms |= {"thread that writes": 1000 * sweep.writer_s / num}
    each_ms |= {part: 1000 * seconds for part, seconds in ELSEWHERE_S.items()}
    slowest = max(each_ms, key=lambda part: each_ms[part])
    each_ms["together"] = sum(each_ms.values())
    return [
        f"## {num:,} trials of {TRIAL_S:g} s on {NUM_NODES:,} nodes, simulated",
        "",
        "| part | CPU-ms a trial | trials a second |",
        "|---|---|---|",
        *(f"| {part} | {ms:.2f} | {1000 / ms:,.0f} |" for part, ms in each_ms.items() if ms > 0),
        "",
        "*: measured in a real sweep (`benchmarks/results/2026-11-24.md`), not simulated.",
        "",
        f"- The slowest part is {slowest}; the nodes end {NUM_NODES / TRIAL_S:.1f} trials a second.",
        f"- The sweep takes {sweep.makespan_s:,.0f} s, {sweep.makespan_s / sweep.shortest_s:.3f} times as "
        f"long as if its driver needed no time; {short.num_trials:,} trials of {SHORT_S:g} s take "
        f"{short.makespan_s / short.shortest_s:.2f} times as long.",
        f"- The second half of the trials costs the queue {sweep.second_half:.2f} times the first.",
    ]
