"""Remaining time of a sweep: the stages that are left, each counted once, times measured durations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import StageCost
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.cost import estimated_cost, measured_cost

_RAN = ("run", "resume")
_ANY = Resources()  # sizes are compared with each other, on whatever runs them


@dataclass
class _Mean:
    """Mean of durations, in seconds."""

    count: int = 0
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds

    @property
    def seconds(self) -> float | None:
        return self.total_s / self.count if self.count else None


@dataclass(frozen=True)
class _Pace:
    """First and last report of a running stage, optimiser step and time, and the steps between reports."""

    stage: Stage
    first: tuple[int, float]
    last: tuple[int, float]
    gap: int

    @property
    def step_s(self) -> float | None:
        """Seconds per step; None after a single report."""
        steps = self.last[0] - self.first[0]
        return (self.last[1] - self.first[1]) / steps if steps > 0 else None

    def left_s(self, now_s: float) -> float | None:
        """Seconds to the last step; None while unknown."""
        if self.step_s is None or self.stage.num_steps is None:
            return None
        # The time since the last report has gone into further steps already, but into fewer than to the next
        # report: where that is overdue, steps take longer than they did.
        usual_s = (self.stage.num_steps - self.last[0]) * self.step_s - (now_s - self.last[1])
        most = min(self.last[0] + self.gap, self.stage.num_steps)
        slow_s = (now_s - self.first[1]) / (most - self.first[0]) if most > self.first[0] else 0.0
        return max(usual_s, (self.stage.num_steps - most) * slow_s)


@dataclass
class Forecast:
    """Durations of stages by name, and what they say about the rest of a sweep.

    Durations measured in this sweep take precedence over earlier ones, whose settings may have differed.

    Args:
        max_concurrent: How many trials run at once.
        earlier: Mean costs of stored artifacts by stage name.
    """

    max_concurrent: int
    earlier: Mapping[str, StageCost]
    _measured: dict[str, _Mean] = field(default_factory=dict)
    _own: _Mean = field(default_factory=_Mean)
    _paces: dict[str, _Pace] = field(default_factory=dict)
    _step_s: dict[str, float] = field(default_factory=dict)
    _speeds: dict[str, float] = field(default_factory=dict)

    def progress(self, trial: SweepTrial, stage: Stage, step: int, now_s: float) -> None:
        """Note the step of a running stage."""
        previous = self._paces.get(trial.key)
        is_same = previous is not None and previous.stage == stage and previous.last[0] <= step
        first = previous.first if previous is not None and is_same else (step, now_s)
        gap = step - previous.last[0] if previous is not None and is_same else 0
        pace = _Pace(stage, first, (step, now_s), gap)
        self._paces[trial.key] = pace
        if pace.step_s is not None:
            self._step_s[stage.name] = pace.step_s
            self._note_speed(stage, pace.step_s * (stage.num_steps or 0))

    def ended(self, trial: SweepTrial, record: TrialRecord) -> None:
        """Note how long the stages took that a trial ran itself."""
        self._paces.pop(trial.key, None)
        if record.state != "finished":
            return
        ran = [stage for stage in record.stages if stage["decision"] in _RAN]
        by_name = {stage.name: stage for stage in trial.graph.stages}
        for stage in ran:
            self._measured.setdefault(stage["name"], _Mean()).add(stage["duration_s"])
            if stage["name"] in by_name:
                self._note_speed(by_name[stage["name"]], stage["duration_s"])
        self._own.add(sum(stage["duration_s"] for stage in ran))

    def left(
        self,
        running: Collection[SweepTrial],
        waiting: Iterable[SweepTrial],
        present: Collection[str],
        num_unproposed: int,
        now_s: float,
    ) -> float | None:
        """Estimate the time to the end.

        A training that was never timed is estimated from its size and from those that were; other stages that
        were never timed matter little beside trainings and are left out.

        Args:
            running: Trials that run.
            waiting: Trials that are queued.
            present: Fingerprints of stored stages.
            num_unproposed: Trials whose configs are not known yet.
            now_s: Time of the clock that `progress` was given.

        Returns:
            Seconds; None where no training has been timed or estimated that tells it.
        """
        left_of = self._left_of_running(now_s)
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
        own_s = self._own.seconds
        total = sum(cell_s for cell_s in seconds.values() if cell_s is not None)
        total += num_unproposed * (own_s or 0.0)
        if any(stage.work is not None for stage in untimed) or (num_unproposed > 0 and own_s is None):
            return None
        if untimed and not self._speeds:
            return None
        at_once = max(1, min(self.max_concurrent, len(trials) + num_unproposed))
        # No sweep is shorter than its longest trial, nor than all its work divided evenly.
        return max(longest, total / at_once)

    def _left_of_running(self, now_s: float) -> dict[str, float]:
        seconds_left = {pace.stage.fingerprint: pace.left_s(now_s) for pace in self._paces.values()}
        return {key: seconds for key, seconds in seconds_left.items() if seconds is not None}

    def _duration(self, stage: Stage) -> float | None:
        """Seconds that a whole stage takes; None when none of its name has been timed."""
        measured = self._measured.get(stage.name)
        if measured is not None:
            return measured.seconds
        if stage.name in self._step_s and stage.num_steps is not None:
            return stage.num_steps * self._step_s[stage.name]
        earlier = measured_cost(stage, self.earlier, _ANY)
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
