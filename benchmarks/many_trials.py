"""A sweep of many trials that do nothing, written to MLflow: trials per second, memory, and a second run."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.overhead import empty_study
from nlgraft.execution.events import Event, TrialEnded
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs.run import Place, Run
from nlgraft.study.data.design import cells

NUM_TRIALS = 10_000
NUM_WARM = 1_000
NUM_WORKERS = 2
_KNOTS = 10


@dataclass
class Course:
    """Time and memory of the driver at the end of trials.

    Attributes:
        began_s: Start of the run.
        ended_s: End of the run, everything written.
        trials_s: End of each trial.
        resident_mib: Resident memory of the driver by the number of trials that have ended.
    """

    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    trials_s: list[float] = field(default_factory=list)
    resident_mib: dict[int, float] = field(default_factory=dict)

    def observe(self, event: Event) -> None:
        """Note the end of a trial."""
        if isinstance(event, TrialEnded):
            self.trials_s.append(time.monotonic())
            num_ended = len(self.trials_s)
            if num_ended == NUM_WARM or num_ended % max(1, NUM_TRIALS // _KNOTS) == 0:
                self.resident_mib[num_ended] = _resident_mib()

    def rate(self, start: int, end: int) -> float:
        """Trials per second between the ends of two trials."""
        return (end - start) / (self.trials_s[end - 1] - self.trials_s[start - 1])


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def run_once(directory: Path) -> Course:
    """Run the study of no-op trials, or find it complete."""
    study, course = empty_study(directory, NUM_TRIALS, NUM_WORKERS), Course()
    tracking_uri = f"sqlite:///{directory / 'mlflow.db'}"
    place = Place(ArtifactStore.open(directory), tracking_uri=tracking_uri, on_event=course.observe)
    Run(study, cells(study), place).result()
    course.ended_s = time.monotonic()
    return course


def report() -> list[str]:
    """Write what was measured."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        first = run_once(Path(name))
        used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        again = run_once(Path(name))
    num = NUM_TRIALS
    growth = first.resident_mib[num] / first.resident_mib[NUM_WARM] - 1
    memory = ", ".join(f"{mib:.0f} after {count}" for count, mib in sorted(first.resident_mib.items()))
    return [
        f"## {num} trials that do nothing, on {NUM_WORKERS} workers, written to MLflow on SQLite",
        "",
        f"- Trials: {first.rate(NUM_WARM, num):.1f} per second after the first {NUM_WARM} "
        f"({first.rate(100, NUM_WARM):.1f} before), {used_s / num:.3f} CPU-s each in the driver; aim 50.",
        f"- From the last trial to the end of the run: {first.ended_s - first.trials_s[-1]:.0f} s, aim 30; "
        f"the whole run: {first.ended_s - first.began_s:.0f} s.",
        f"- Resident memory of the driver in MiB: {memory}: {growth:+.0%} since {NUM_WARM}, aim 20 %.",
        f"- A second run of the same study: {again.ended_s - again.began_s:.0f} s, aim 10.",
        f"- Load average: {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.",
    ]
