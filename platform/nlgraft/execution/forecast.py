"""Remaining time of a sweep: the stages that are left, each counted once, times measured durations."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean, median

from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import StageCost
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.cost import estimated_cost, measured_cost

_RAN = ("run", "resume")
_ANY = Resources()  # sizes are compared with each other, on whatever runs them
_NUM_TIMED = 32
"""Newest durations that count, of each stage name and of whole trials."""


class Forecast:
    """Durations of stages by name, and what they say about the rest of a sweep.

    Durations measured in this sweep take precedence over earlier ones, whose settings may have differed.

    Args:
        max_concurrent: How many trials run at once.
        earlier: Mean costs of stored artifacts by stage name.
    """

    def __init__(self, max_concurrent: int, earlier: Mapping[str, StageCost]) -> None:
        self._max_concurrent = max_concurrent
        self._earlier = earlier
        self._durations: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_TIMED))
        self._totals: deque[float] = deque(maxlen=_NUM_TIMED)
        self._first: dict[str, tuple[Stage, int, float]] = {}
        self._left_s: dict[str, tuple[str, float]] = {}
        self._step_s: dict[str, float] = {}
        self._speeds: dict[str, float] = {}

    def progress(self, trial: SweepTrial, stage: Stage, step: int, now_s: float) -> None:
        """Note the step of a running stage."""
        first_stage, first_step, first_s = self._first.get(trial.key, (None, 0, 0.0))
        if first_stage != stage or step < first_step:
            self._first[trial.key] = (stage, step, now_s)
        elif step > first_step:
            step_s = self._step_s[stage.name] = (now_s - first_s) / (step - first_step)
            if stage.num_steps is not None:
                self._left_s[trial.key] = (stage.fingerprint, (stage.num_steps - step) * step_s)
                self._note_speed(stage, stage.num_steps * step_s)

    def ended(self, trial: SweepTrial, record: TrialRecord) -> None:
        """Note how long the stages took that a trial ran itself."""
        self._first.pop(trial.key, None)
        self._left_s.pop(trial.key, None)
        if record.state != "finished":
            return
        by_fingerprint = {stage.fingerprint: stage for stage in trial.graph.stages}
        ran = [entry for entry in record.stages if entry["decision"] in _RAN]
        for entry in ran:
            self._durations[entry["name"]].append(entry["duration_s"])
            if entry["fingerprint"] in by_fingerprint:
                self._note_speed(by_fingerprint[entry["fingerprint"]], entry["duration_s"])
        self._totals.append(sum(entry["duration_s"] for entry in ran))

    def left(
        self,
        running: Collection[SweepTrial],
        waiting: Iterable[SweepTrial],
        present: Collection[str],
        num_unproposed: int,
    ) -> float | None:
        """Estimate the time to the end.

        A training that was never timed is estimated from its size and from those that were; other stages that
        were never timed matter little beside trainings and are left out.

        Args:
            running: Trials that run.
            waiting: Trials that are queued.
            present: Fingerprints of stored stages.
            num_unproposed: Trials whose configs are not known yet.

        Returns:
            Seconds; None where no training has been timed or estimated that tells it.
        """
        left_of = dict(self._left_s.values())
        seconds: dict[str, float | None] = {}
        untimed: list[Stage] = []
        longest = 0.0
        trials = [*running, *waiting]
        for trial in trials:
            chain = 0.0
            for stage in trial.graph.stages:
                key = stage.fingerprint
                if key in present:
                    continue
                if key not in seconds:
                    seconds[key] = left_of.get(key, self._duration(stage))
                    untimed += [stage] if seconds[key] is None else []
                chain += seconds[key] or 0.0
            longest = max(longest, chain)
        own_s = fmean(self._totals) if self._totals else None
        total = sum(cell_s for cell_s in seconds.values() if cell_s is not None)
        total += num_unproposed * (own_s or 0.0)
        # An unknown training may take longer than all the rest: no estimate is better than a small one.
        if any(stage.work is not None for stage in untimed) or (num_unproposed > 0 and own_s is None):
            return None
        if untimed and not self._speeds:
            return None
        at_once = max(1, min(self._max_concurrent, len(trials) + num_unproposed))
        # No sweep is shorter than its longest trial, nor than all its work divided evenly.
        return max(longest, total / at_once)

    def _duration(self, stage: Stage) -> float | None:
        """Seconds that a whole stage takes; None when none of its name has been timed."""
        if stage.name in self._durations:
            return fmean(self._durations[stage.name])
        if stage.name in self._step_s and stage.num_steps is not None:
            return stage.num_steps * self._step_s[stage.name]
        earlier = measured_cost(stage, self._earlier, _ANY)
        if earlier is not None:
            return earlier.seconds
        by_size = estimated_cost(stage, _ANY)
        if by_size is None or not self._speeds:
            return None
        # The median: one training whose size says little of its time must not decide.
        return by_size[0] * median(self._speeds.values())

    def _note_speed(self, stage: Stage, seconds: float) -> None:
        """Note how many times as long as its size says a training takes here."""
        by_size = estimated_cost(stage, _ANY)
        if by_size is not None and by_size[0] > 0:
            self._speeds[stage.name] = seconds / by_size[0]
