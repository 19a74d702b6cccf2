"""Queue of the trials of a sweep: decides, without Ray, which trial runs next.

The store is the source of truth. Completed trials are never handed out; a trial that needs a stage which a
running trial is computing waits here and so occupies no worker; a trial whose stage has failed fails with it.
"""

from __future__ import annotations

import math
import socket
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from statistics import fmean, median

from nlgraft.basics.errors import StoreError
from nlgraft.basics.pacing import Pacer
from nlgraft.execution.events import (
    Driver,
    LookTaken,
    Notice,
    Outlook,
    SweepStarted,
    TrialEnded,
    TrialProgress,
    TrialStarted,
)
from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.execution.planned_trials import CellSearches, KnownTrial, Replicates
from nlgraft.execution.sweep_board import LEFT_OUT_S
from nlgraft.pipeline.stage import Stage, Work
from nlgraft.pipeline.store import ArtifactStore, StageCost
from nlgraft.pipeline.trial import TrialRecord, TrialState, finished_record, trial_record, write_end
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.study import Resources, Study
from nlgraft.study.planning.cost import estimated_cost, measured_cost

LOOK_SHARE = 0.02
"""Share of the driver's time that may go into looking up what the store holds, and into outlooks: each
goes through every trial that is left."""
_LOOK_PAUSE_S = 0.5
_OUTLOOK_PAUSE_S = 2.0


class TrialQueue:
    """Hands out the trials of a study one at a time and records how they end.

    **Order.** Replicates by cell, then seed; proposals from the cell that has the fewest running.

    **Failure.** A failed trial raises nothing: it is recorded and the others continue, within the study's
    budget of failures.

    Args:
        open_optuna: Opens the Optuna study of a cell.
        driver: Receives every event, and is polled before each write to what drivers share.
        max_concurrent: How many trials may run at once.

    Attributes:
        stop_reason: Reason why the sweep ends early, or None.
    """

    def __init__(
        self,
        study: Study,
        store: ArtifactStore,
        cells: list[Cell],
        open_optuna: Callable[[Cell], OptunaStudy],
        driver: Driver,
        max_concurrent: int,
    ) -> None:
        self._study = study
        self._store = store
        self._cells = cells
        self._driver = driver
        self._max_concurrent = max_concurrent
        self._clock = driver.clock
        self._waiting: list[SweepTrial] = []
        self._replicates = Replicates(study, store, cells, driver.splits)
        self._deferrals = Deferrals(driver.clock)
        self._running: dict[str, SweepTrial] = {}
        self._following: set[str] = set()
        self._short = ShortTrials()
        # In an object store each manifest that durations are read from is a request.
        self._forecast = Forecast(max_concurrent, store.durations() if store.is_local else {})
        self._stages = StageClaims(store, driver.clock)
        self._outlooks = Pacer(_OUTLOOK_PAUSE_S, LOOK_SHARE, driver.clock)
        self._searches = CellSearches(study, store, cells, open_optuna)
        self._deadline_s = (
            None if study.budget.wall_clock is None else self._clock() + study.budget.wall_clock
        )
        self._trial_s, self._metered_s = 0.0, self._clock()
        self.stop_reason: str | None = None
        self._num_started = 0
        self.num_run = 0
        self.num_reused = 0
        self.num_failed = 0

    def open(self) -> None:
        """Compare the plan with the store; queue what is missing and report the rest as reused."""
        trials = self._searches.resume()
        if self._study.search is None:
            for cell in self._cells:
                trials += self._replicates.begin(cell, {})
        num_reused = sum(record is not None for _, record in trials)
        num_planned = len(trials) + self._searches.num_unproposed
        begun = self._store.begun()
        to_do = (trial for trial, record in trials if record is None and begun)
        num_resumed = len(
            begun.intersection(stage.fingerprint for each in to_do for stage in each.graph.stages)
        )
        self._driver.observe(SweepStarted(num_planned, num_reused, self._max_concurrent, num_resumed))
        self._enqueue(trials)
        self._replicate_best()
        self._take_look()

    @property
    def is_done(self) -> bool:
        """True when nothing runs and nothing can be handed out any more."""
        if self._running:
            return False
        return self.stop_reason is not None or (not self._waiting and self._searches.is_over)

    @property
    def num_idle(self) -> int:
        """Number of workers without a trial."""
        return max(0, self._max_concurrent - len(self._running) + len(self._following))

    @property
    def awaited_of_others(self) -> str | None:
        """What other sweeps compute while none of these trials does; None if one does, or nothing is left."""
        return None if self.is_done else self._deferrals.awaited(self._running)

    @property
    def running(self) -> list[SweepTrial]:
        """Trials that were handed out and have not ended."""
        return list(self._running.values())

    def close(self) -> None:
        """Write what has been told to the searches' databases, as far as that is possible."""
        with suppress(StoreError):  # it is made again from the proposals on record
            self._searches.flush()

    def stop(self, reason: str) -> None:
        """Hand out no further trial; the first reason is kept."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self._driver.observe(Notice(f"no further trial is started: {reason}"))

    def take(self) -> SweepTrial | None:
        """Hand out the next trial whose stages nobody else is computing, or None if none can start now."""
        self.check_budget()
        budget = self._study.budget.trials
        if budget is not None and self._num_started >= budget:
            return None
        if self.stop_reason is not None or self.num_idle == 0:
            return None
        self._stages.look(self._waiting)
        self._fail_doomed()
        for trial in self._waiting:
            if self._is_ready(trial):
                self._waiting.remove(trial)
                return self._start(trial)
        # Only when no known trial can start: later proposals know more results.
        trial = self._searches.propose()
        if trial is not None:
            if self._is_ready(trial):
                return self._start(trial)
            self._waiting.append(trial)
        self._tell_outlook()
        return None

    def take_following(self, first: SweepTrial) -> list[SweepTrial]:
        """Hand out trials that the worker of ``first`` computes after it, if such trials are short.

        Proposals are made for this only where results change none: a search that waits for them knows more.
        """
        search, budget = self._study.search, self._study.budget.trials
        num_left, is_blind = len(self._waiting), False
        if first.kind == "search" and search is not None:
            # A trial scheduler judges Tune trials, so each of its trials is one.
            if search.active_scheduler is not None:
                return []
            is_blind = search.sampler.is_blind
            num_left += self._searches.num_unproposed if is_blind else 0
        # What is left is divided among the idle workers.
        limit = -(-num_left // (self.num_idle + 1))
        limit = limit if budget is None else min(limit, budget - self._num_started)
        num_ahead = min(limit, self._short.num_at_once(first) - 1) if is_blind else 0
        while len(self._waiting) < num_ahead:
            trial = self._searches.propose()
            if trial is None:
                break
            self._waiting.append(trial)
        alike = self._short.like(first, self._waiting, limit)
        following = [trial for trial in alike if self._is_ready(trial)]
        for trial in following:
            self._waiting.remove(trial)
            self._following.add(trial.key)
            self._start(trial)
        return following

    def give_back(self, trial: SweepTrial, fault: str = "") -> None:
        """Requeue a trial that its worker has not begun, or could not go on with for a fault of its host."""
        self._release(trial)
        # It computed nothing that counts, so the budget gets it back.
        self._num_started -= 1
        self._waiting.insert(0, trial)
        if fault:
            self._driver.observe(Notice(f"{fault}. The host is left out for {LEFT_OUT_S:g} s"))

    def check_budget(self) -> None:
        """Stop the sweep if its budget is spent, or if it was asked to end."""
        if self._deadline_s is not None and self._clock() >= self._deadline_s:
            self.stop(f"the budget of {self._study.budget.wall_clock:g} s wall clock is spent")
        self._meter()
        for kind, (held, limit) in self._study.budget_hours(self._trial_s).items():
            if held >= limit:
                self.stop(f"the budget of {limit:g} {kind}-hours is spent")
        requested = self._driver.poll()
        if requested is not None:
            self.stop(requested)
        budget = self._study.budget.trials
        if budget is not None and self._num_started >= budget and not self._running:
            self.stop(f"the budget of {budget} trials is spent")

    def progress(
        self,
        trial: SweepTrial,
        stage: str,
        step: int,
        metrics: Mapping[str, float],
        unix_ms: int,
    ) -> None:
        """Pass a report of a running trial to the observer."""
        running = next((candidate for candidate in trial.graph.stages if candidate.name == stage), None)
        if running is not None:
            self._forecast.progress(trial, running, step, self._clock())
        num_steps = None if running is None else running.num_steps
        self._driver.observe(TrialProgress(trial, stage, step, metrics, unix_ms, num_steps))
        self._tell_outlook()

    def intermediate(
        self,
        trial: SweepTrial,
        value: float,
        step: int,
    ) -> None:
        """Pass an intermediate value of the objective of a search trial to its search."""
        self._driver.poll()
        if trial.kind == "search":
            self._searches.intermediate(trial, value, step)

    def defer(self, trial: SweepTrial, owner: str) -> None:
        """Requeue a trial that found one of its stages being computed by ``owner``, another sweep."""
        self._release(trial)
        self._num_started -= 1  # it computed nothing, so the budget does not count it
        self._waiting.append(trial)
        notice = self._deferrals.add(trial, owner)
        if notice is not None:
            self._driver.observe(Notice(notice))

    def end(self, trial: SweepTrial, record: TrialRecord) -> None:
        """Take the record of a trial that has ended."""
        self._driver.poll()
        self._release(trial)
        self.num_run += 1
        if record.state == "failed":
            self.num_failed += 1
            self._stages.remember_failed(record)
        if record.state == "finished":
            self._short.note(trial, record.duration_s)
        self._forecast.ended(trial, record)
        self._tell_outlook()
        self._driver.observe(TrialEnded(trial, record))
        if trial.kind == "search":
            self._searches.end(trial, record)
            self._replicate_best()
        self._check_failures()
        self._take_look()

    def kill(self, trial: SweepTrial, reason: str) -> None:
        """Record a running trial as killed from outside and stop the sweep; the next one runs it again.

        A search is told nothing, so the proposal stays open. The trial's own record, with its metrics so far,
        is kept if there is one. A store out of reach, perhaps the reason itself, changes nothing.
        """
        self.stop(reason)
        record = None
        with suppress(StoreError):
            finished = finished_record(trial.graph, self._store)
            if finished is not None:  # its worker was quicker than the news of it
                self.end(trial, finished)
                return
            record = trial_record(self._store, trial.fingerprint)
        self._release(trial)
        if record is None or (record.state, record.reason) != ("killed", reason):
            record = _record_of_end(trial, "killed", reason)
            with suppress(StoreError):
                self._store_record(trial, record)
        self._driver.observe(TrialEnded(trial, record))

    def lost(self, trial: SweepTrial, reason: str) -> TrialRecord:
        """Record a trial as failed whose process died, unless it had finished before; return the record."""
        finished = finished_record(trial.graph, self._store)
        if finished is not None:
            return finished
        record = _record_of_end(trial, "failed", reason)
        self._store_record(trial, record)
        return record

    def _store_record(self, trial: SweepTrial, record: TrialRecord) -> None:
        self._driver.poll()
        write_end(record, trial.graph, self._store)

    def _enqueue(self, trials: Iterable[KnownTrial]) -> None:
        """Queue the trials that are missing, and report the others as reused."""
        for trial, record in trials:
            if record is None:
                self._waiting.append(trial)
                continue
            self.num_reused += 1
            self._trial_s += record.duration_s
            self.num_failed += record.state == "failed"
            self._driver.observe(TrialEnded(trial, record, is_reused=True))

    def _replicate_best(self) -> None:
        """Queue the replicates of every cell whose search has just ended."""
        for searched in self._searches.newly_over():
            self._driver.observe(searched)
            if searched.params is not None:
                self._enqueue(self._replicates.begin(searched.cell, searched.params))

    def _take_look(self) -> None:
        """Queue what planned looks grant, once all the replicates granted before have ended."""
        # Again and again: if all that a look grants is stored already, the next look is due at once.
        while self._searches.is_over and not (self._waiting or self._running or self.stop_reason is not None):
            granted = self._replicates.grant(self._driver.grant())
            if not granted:
                return
            self._driver.observe(LookTaken(dict(self._replicates.granted), len(granted)))
            self._enqueue(granted)

    def _is_ready(self, trial: SweepTrial) -> bool:
        return self._deferrals.is_over(trial) and self._stages.awaited(trial) is None

    def _tell_outlook(self) -> None:
        """Tell the observer, as often as its cost allows, what waits for what and how long it all takes."""
        if not self._outlooks.is_due:
            return
        with self._outlooks.turn():
            left_s = self._forecast.left(
                self.running, self._waiting, self._stages.present, self._searches.num_unproposed
            )
            awaited_stages = [self._stages.awaited(trial) for trial in self._waiting]
            held_back = Counter(stage.name for stage in awaited_stages if stage is not None)
        self._driver.observe(Outlook(len(self._running), held_back, left_s))

    def _meter(self) -> None:
        """Add the time since the last call, in which as many trials were computed as now."""
        now_s = self._clock()
        num_computed = len(self._running) - len(self._following)
        self._trial_s += (now_s - self._metered_s) * num_computed
        self._metered_s = now_s

    def _start(self, trial: SweepTrial) -> SweepTrial:
        self._meter()
        self._running[trial.key] = trial
        self._num_started += 1
        self._stages.claim(trial)
        self._driver.observe(TrialStarted(trial))
        return trial

    def _release(self, trial: SweepTrial) -> None:
        self._meter()
        self._running.pop(trial.key, None)
        self._following.discard(trial.key)
        self._stages.release(trial)

    def _fail_doomed(self) -> None:
        """Fail, without running them, the waiting trials that need a stage which has failed."""
        if not self._stages.has_failed:  # of 100,000 waiting trials, each look takes milliseconds
            return
        for trial in list(self._waiting):
            reason = self._stages.doom(trial)
            if reason is not None:
                self._waiting.remove(trial)
                self._running[trial.key] = trial  # `end` takes a trial that was handed out
                self.end(trial, self.lost(trial, reason))

    def _check_failures(self) -> None:
        limit = self._study.budget.max_failed_fraction
        ended = self.num_run + self.num_reused
        if self.num_failed > limit * ended:
            self.stop(
                f"{self.num_failed} of {ended} ended trials failed, "
                f"more than budget.max_failed_fraction = {limit:g}"
            )


def _record_of_end(trial: SweepTrial, state: TrialState, reason: str) -> TrialRecord:
    """Make the record of an end that the trial's own process has not recorded."""
    now = time.time()
    return TrialRecord(
        fingerprint=trial.fingerprint,
        config=dict(trial.config),
        seed=trial.seed,
        state=state,
        reason=reason,
        started_at=now,
        ended_at=now,
        host=socket.gethostname(),
    )


# Which stages are stored, being computed by a running trial, or failed.


class StageClaims:
    """Tracks which stages of a sweep are stored, being computed, or failed.

    Attributes:
        present: Fingerprints of the stages that the store is known to hold.

    Args:
        store: The artifact store.
        clock: Monotonic seconds.
    """

    def __init__(self, store: ArtifactStore, clock: Callable[[], float]) -> None:
        self.present: set[str] = set()
        self._store = store
        self._looks = Pacer(_LOOK_PAUSE_S, LOOK_SHARE, clock)
        self._claimed: dict[str, str] = {}
        self._released: list[Stage] = []
        self._failed: dict[str, str] = {}

    def claim(self, trial: SweepTrial) -> None:
        """Note that a trial starts and computes its missing stages."""
        for stage in trial.graph.stages:
            if stage.fingerprint not in self.present:
                self._claimed[stage.fingerprint] = trial.key

    def release(self, trial: SweepTrial) -> None:
        """Note that a trial has ended; what it published is seen by the next look."""
        for stage in trial.graph.stages:
            if self._claimed.get(stage.fingerprint) == trial.key:
                del self._claimed[stage.fingerprint]
                self._released.append(stage)

    def awaited(self, trial: SweepTrial) -> Stage | None:
        """Return the first stage of a trial that a running one is computing."""
        for stage in trial.graph.stages:
            if stage.fingerprint in self._claimed and stage.fingerprint not in self.present:
                return stage
        return None

    def look(self, waiting: Iterable[SweepTrial]) -> None:
        """Look up which claimed or wanted stages have been published since the last look."""
        # What a trial that has ended published is seen at once, everything else after a pause.
        self.present |= {stage.fingerprint for stage in self._released if self._store.has(stage)}
        self._released.clear()
        if self._looks.is_due:
            with self._looks.turn():
                fingerprints = {stage.fingerprint for trial in waiting for stage in trial.graph.stages}
                fingerprints |= set(self._claimed)
                self.present |= self._store.finished(fingerprints - self.present)

    def remember_failed(self, record: TrialRecord) -> None:
        """Keep the stage that failed: every trial that needs it would fail in the same way."""
        for stage in record.stages:
            if stage["decision"] == "failed":
                self._failed[stage["fingerprint"]] = record.reason

    @property
    def has_failed(self) -> bool:
        """True if a stage has failed."""
        return bool(self._failed)

    def doom(self, trial: SweepTrial) -> str | None:
        """Return why a trial is bound to fail; None if it may succeed, or while a stage of it is computed."""
        stages = [stage.fingerprint for stage in trial.graph.stages]
        doomed = [key for key in stages if key in self._failed]
        is_busy = any(key in self._claimed for key in stages)
        return self._failed[doomed[0]] if doomed and not is_busy else None


# Trials that found one of their stages being computed by another sweep, and are tried again.


_PAUSE_S = 5.0
_LOOK_S = 15.0
"""A deferred trial that runs again for less than this may find its stage busy once more."""


class Deferrals:
    """Remembers when trials were deferred, and for whom.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._not_before_s: dict[str, float] = {}
        self._last = ""

    def add(self, trial: SweepTrial, owner: str) -> str | None:
        """Note that ``owner`` computes a stage of a trial; return that as text if it is news."""
        self._not_before_s[trial.key] = self._clock() + _PAUSE_S
        before, self._last = self._last, f"{trial.name} waits for a stage that {owner} is computing"
        return None if self._last == before else self._last

    def is_over(self, trial: SweepTrial) -> bool:
        """Tell if a trial may be tried."""
        return self._not_before_s.get(trial.key, -math.inf) <= self._clock()

    def awaited(self, running: Iterable[str]) -> str | None:
        """Describe what is waited for, given the keys of the trials that run; None if one computes."""
        # Each deferred trial runs for a moment again and again, to find its stage still busy.
        latest_s = self._clock() - _LOOK_S
        is_waiting = all(self._not_before_s.get(key, -math.inf) > latest_s for key in running)
        return self._last if is_waiting and self._last else None


# How many trials a worker may be handed at once: several if they are short.


BATCH_S = 0.5
"""Time that a batch may take: what the driver learns of a sweep, and when it can stop it, is as old."""

MAX_BATCH = 32
_NUM_TIMED = 4

_Kind = tuple[tuple[str, Work | None], ...]


class ShortTrials:
    """Durations of the newest trials by kind: the names of their stages and the sizes of their trainings.

    Starting a Tune trial takes some 15 ms of CPU time, in the driver, the worker and Ray, whatever it does.
    """

    def __init__(self) -> None:
        self._newest_s: dict[_Kind, deque[float]] = {}

    def note(self, trial: SweepTrial, seconds: float) -> None:
        """Note how long a finished trial took."""
        self._newest_s.setdefault(_kind(trial), deque(maxlen=_NUM_TIMED)).append(seconds)

    def num_at_once(self, trial: SweepTrial) -> int:
        """Return how many trials like this one fit into a batch; 1 until some of them were timed."""
        newest_s = self._newest_s.get(_kind(trial), ())
        if len(newest_s) < _NUM_TIMED:
            return 1
        # By the slowest, since idle workers get nothing of a batch that takes longer than it should.
        slowest_s = max(*newest_s, BATCH_S / MAX_BATCH)
        return max(1, int(BATCH_S / slowest_s))

    def like(
        self,
        first: SweepTrial,
        waiting: Sequence[SweepTrial],
        limit: int,
    ) -> list[SweepTrial]:
        """Select the trials next in a queue, ``limit`` at most, that fit into a batch behind its first."""
        num = min(self.num_at_once(first) - 1, limit)
        return [
            trial
            for trial in waiting[: max(0, num)]
            if (trial.kind, _kind(trial)) == (first.kind, _kind(first))
        ]


def _kind(trial: SweepTrial) -> _Kind:
    return tuple((stage.name, stage.work) for stage in trial.graph.stages)


# Forecast of what a trial takes, by those that have run.


_RAN = ("run", "resume")
_ANY = Resources()  # sizes are compared with each other, on whatever runs them
_NUM_DURATIONS = 32
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
        self._durations: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_DURATIONS))
        self._totals: deque[float] = deque(maxlen=_NUM_DURATIONS)
        self._first: dict[str, tuple[Stage, int, float]] = {}
        self._left_s: dict[str, tuple[str, float]] = {}
        self._step_s: dict[str, float] = {}
        self._speeds: dict[str, float] = {}

    def progress(
        self,
        trial: SweepTrial,
        stage: Stage,
        step: int,
        now_s: float,
    ) -> None:
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
        if any(stage.work is not None for stage in untimed):
            return None
        if num_unproposed > 0 and own_s is None:
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
