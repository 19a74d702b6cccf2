"""Streams of proposals in the store: what was proposed at which level, what was decided, what was kept.

A stream is what shares an error budget: one system, one metric and one data set, in whatever study. Its steps
are entries of one journal, in the order in which they happened. A proposal and its level are entered before
any of its results is seen, and once: whoever asks again finds the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

from pydantic import JsonValue

from nlgraft.analysis.data.results import Results, TrialResult
from nlgraft.basics.errors import DataError, nearest
from nlgraft.basics.wording import timestamp
from nlgraft.pipeline.record_store import Journal, Pages
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.study import Overrides, Study
from nlgraft.study.reading.system_import import system_of

BASELINE = 0
"""Number of the study's baseline among what is kept."""

Arm = Literal["kept", "proposal"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a proposal.

    Attributes:
        kind: ``proposed``; ``lost``: a seed of an arm failed; ``decided``; ``measured``: on fresh seeds.
        time: When, UTC, ISO 8601.
        stream: Digest of system, metric and data.
        number: Number of the proposal in its stream, from 1.
        study: Name of the study that proposed it.
        metric: The metric that decides.
        origin: Digest of the study's baseline.
        config: Digest of the proposal's config without its seed.
        against: Number of the kept proposal that it would replace; `BASELINE` for the study's baseline.
        overrides: All values in which it differs from the study's baseline, by path in the study file.
        level: Its level, see `nlgraft.analysis.policy.proposals`.
        prior_df: Degrees of freedom of what earlier proposals say about the noise of its gains.
        prior_variance: Their variance.
        decision: What was decided.
        reason: Why, where the evidence is not the reason.
        arm: The arm that lost a seed.
        seeds: Seeds that decided, measured or were lost.
        gains: Proposal minus what is kept, by those seeds; positive is better.
        p: The p-value of no gain; None in streams that were decided by evidence.
    """

    kind: Literal["proposed", "lost", "decided", "measured"]
    time: str = ""
    stream: str
    number: int = 0
    study: str = ""
    metric: str = ""
    origin: str = ""
    config: str = ""
    against: int = BASELINE
    overrides: Mapping[str, JsonValue] = field(default_factory=dict)
    level: float = 0.0
    prior_df: float = 0.0
    prior_variance: float = 0.0
    decision: Literal["KEEP", "DISCARD"] | None = None
    reason: str = ""
    arm: Arm | None = None
    seeds: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()
    p: float | None = None

    @property
    def texts(self) -> list[str]:
        """The overrides as the command line takes them."""
        return Overrides(values=self.overrides).texts


@dataclass(frozen=True)
class Proposal:
    """A proposal and what became of it.

    Attributes:
        entered: The step that proposed it.
        decided: The step that decided it; None while it is open.
        measured: The second measurement of what was kept; None before it.
        lost: Seeds that an arm lost, in the order in which they were.
    """

    entered: Step
    decided: Step | None = None
    measured: Step | None = None
    lost: tuple[tuple[Arm, int], ...] = ()

    @property
    def is_kept(self) -> bool:
        """True if it was kept."""
        return self.decided is not None and self.decided.decision == "KEEP"

    def after(self, step: Step) -> Proposal:
        """Return the proposal after a further step; what was decided or measured first stands."""
        if step.kind == "decided":
            return replace(self, decided=self.decided or step)
        if step.kind == "measured":
            return replace(self, measured=self.measured or step)
        assert step.arm is not None
        return replace(self, lost=(*self.lost, *((step.arm, seed) for seed in step.seeds)))


class Stream:
    """The proposals of one stream.

    Args:
        key: Digest of the stream.
        pages: Steps of any streams, in order.

    Attributes:
        num_unreadable: Steps that cannot be read; each counts as a proposal when levels are assigned.
    """

    def __init__(self, key: str, pages: Pages[Step]) -> None:
        self.num_unreadable = pages.last - len(pages.documents)
        self.proposals: dict[int, Proposal] = {}
        self._kept: dict[int, Proposal] = {}
        for step in pages.documents.values():
            if step.stream != key:
                continue
            if step.kind == "proposed":
                self.proposals[step.number] = Proposal(step)
            elif step.number in self.proposals:
                self.proposals[step.number] = proposal = self.proposals[step.number].after(step)
                if proposal.is_kept:  # a second measurement does not change the order
                    self._kept[step.number] = proposal

    @property
    def num_before(self) -> int:
        """Number of proposals that the next one comes after."""
        return len(self.proposals) + self.num_unreadable

    @property
    def num_kept(self) -> int:
        """Number of proposals that were kept, from whatever baseline."""
        return len(self._kept)

    def kept(self, origin: str) -> dict[int, Proposal]:
        """Return what was kept from a baseline, by number, in the order in which it was kept."""
        return {number: kept for number, kept in self._kept.items() if kept.entered.origin == origin}

    def is_of(self, name: str, variant: str | None) -> bool:
        """True if a variant of a study proposed something; with None, if any variant of the study did."""
        studies = {proposal.entered.study for proposal in self.proposals.values()}
        return variant in studies if variant else name in {study.partition("@")[0] for study in studies}

    def find(self, step: Step) -> Proposal | None:
        """Find the proposal that asks the same: this config against this one."""
        asks = attrgetter("origin", "config", "against")
        same = (proposal for proposal in self.proposals.values() if asks(proposal.entered) == asks(step))
        return next(same, None)

    def compared_with(self, origin: str, against: str | None) -> Proposal | None:
        """Find the kept proposal that the next one is compared with; None for the study's baseline.

        Args:
            origin: Digest of the study's baseline.
            against: Number of a kept proposal or ``baseline``; None for what was kept last.

        Raises:
            DataError: No such proposal was kept.
        """
        kept = self.kept(origin)
        if against is None:
            return next(reversed(kept.values()), None)
        names = {"baseline": None, str(BASELINE): None} | {str(n): proposal for n, proposal in kept.items()}
        if against not in names:
            allowed = [name for name in names if name != str(BASELINE)]
            raise DataError(f"--against {against}: no such proposal was kept. {nearest(against, allowed)}")
        return names[against]


def open_streams(store: ArtifactStore) -> Journal[Step]:
    """Open the journal of all streams of a store."""
    return store.journal("streams", Step)


def read_streams(store: ArtifactStore) -> dict[str, Stream]:
    """Read all streams of a store, by key, in the order in which they began."""
    pages = open_streams(store).read()
    return {step.stream: Stream(step.stream, pages) for step in pages.documents.values()}


def read_stream(store: ArtifactStore, key: str) -> Stream:
    """Read one stream; it has no proposals before the first."""
    return Stream(key, open_streams(store).read())


def append(
    store: ArtifactStore,
    key: str,
    next_step: Callable[[Stream], Step | None],
) -> Stream:
    """Append a step, worked out from the stream as it is at that moment.

    Args:
        store: The store.
        key: Digest of the stream.
        next_step: Returns the step, or None if nothing is left to say. Called again if another driver was
            faster.

    Returns:
        The stream with the step.
    """
    journal = open_streams(store)
    while True:
        pages = journal.read()
        stream = Stream(key, pages)
        step = next_step(stream)
        if step is None:
            return stream
        if journal.append(pages.last + 1, replace(step, time=timestamp())):
            return read_stream(store, key)


_ARMS: tuple[Arm, Arm] = ("kept", "proposal")


@dataclass(frozen=True)
class Pairs:
    """Trials of two configs with the same seeds.

    Attributes:
        gains: Proposal minus what is kept by seed, where both have a value; positive is better.
        failed: Reasons by arm and seed of the trials that failed.
        diverged: Arms and seeds whose value is not finite.
        open: Seeds with a trial that has not ended.
        why_not: Reason why the values cannot be compared; empty if they can.
    """

    gains: Mapping[int, float]
    failed: Mapping[tuple[Arm, int], str] = field(default_factory=dict)
    diverged: frozenset[tuple[Arm, int]] = frozenset()
    open: frozenset[int] = frozenset()
    why_not: str = ""


def read_pairs(pair: Study, store: ArtifactStore, num_seeds: int) -> Pairs:
    """Read the first seeds of a study of two cells, on its objective."""
    metric, seeds = pair.objective.metric, pair.seeds[:num_seeds]
    arms = dict(zip(_ARMS, Results.read_dev(pair, store).cells, strict=True))
    trials: dict[tuple[Arm, int], TrialResult] = {
        (arm, trial.seed): trial for arm, cell in arms.items() for trial in cell.trials[:num_seeds]
    }
    kept, proposal = (cell.measured(metric, seeds) for cell in arms.values())
    # Values may be finite and yet of another metric: other signatures, or units of another vocabulary.
    why_not = ""
    counted_by = system_of(pair).metrics[metric].counted_by
    counts = [cell.values(counted_by) for cell in arms.values() if counted_by]
    for seed in kept.keys() & proposal.keys():
        if kept[seed].signature != proposal[seed].signature:
            why_not = f"{metric} is computed in another way: {proposal[seed].signature}"
        elif len({by_seed.get(seed) for by_seed in counts}) > 1:
            why_not = f"{metric} averages over units of another vocabulary; take a metric per character"
    sign = pair.objective.sign
    return Pairs(
        {seed: sign * (proposal[seed].value - kept[seed].value) for seed in kept if seed in proposal},
        {key: trial.reason for key, trial in trials.items() if trial.state == "failed"},
        frozenset(
            key
            for key, trial in trials.items()
            if trial.state == "finished" and trial.measured(metric) is None
        ),
        frozenset(seed for (_, seed), trial in trials.items() if trial.state not in ("finished", "failed")),
        why_not,
    )
