"""One proposal of a stream: entered at its level, run until it is decided, measured again if kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from nlgraft.analysis.data.stream import BASELINE, Proposal, Step, Stream, append, read_pairs, read_stream
from nlgraft.analysis.policy.proposals import (
    FRESH_SEEDS,
    LOOKS,
    Decision,
    Gain,
    Judgement,
    enter_seen,
    false_share,
    gain_of,
    judge,
    noise_of,
    stream_level,
)
from nlgraft.analysis.rendering.typesetting import sentences
from nlgraft.basics.errors import Problem, StudyError
from nlgraft.basics.wording import count
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs.run import Place, Run
from nlgraft.study.data import paths
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.study import NOT_IN_VARIANT, Overrides
from nlgraft.study.data.system import SEARCH_SPLITS
from nlgraft.study.planning.selection import cell_key
from nlgraft.study.public import Study
from nlgraft.study.reading import documents
from nlgraft.study.reading.reader import read_study
from nlgraft.study.reading.resolving import nested_config, resolve_cell
from nlgraft.study.reading.system_import import system_of

PROPOSAL = "proposal"
"""Name of the factor whose baseline is the kept config."""

_KEPT = "kept"
_CODE = "code"
_FEW = 2
_FIRST_SEED = 2_000_000_000
"""Far from what people choose, and within 31 bits, which is what some scripts take."""
_SEEDS_PER_BLOCK = 100
_MEASURING = ("data", "score")
"""Fields of a system's config that determine on which data, and by which metrics, output is scored."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a proposal.

    Attributes:
        decision: ``KEEP``, ``DISCARD``, or ``MORE``: not decided yet.
        reason: Why, where the gains are not the reason.
        study: Name of the study, with its scales.
        number: Number of the proposal in its stream.
        changes: What was proposed, as ``key=value``.
        overrides: All that it changes of the study's baseline.
        against: ``baseline``, or the number of the kept proposal that it was compared with.
        metric: The metric that decides.
        unit: Its unit.
        level: The proposal's level.
        p: The p-value of no gain, which keeps it where it is at most the level; None in old streams.
        first: Gain on the seeds that decided; of what is kept, it flatters.
        again: Gain on fresh seeds, of what is kept; None before they were run.
        num_proposals: Proposals of the stream so far.
        num_kept: Those of them that were kept.
        alpha: Bound on the expected share of false keeps.
        notes: What limits the answer.
        is_repeated: True if it was decided before.
        has_failed: True if a trial failed, or the run ended early.
    """

    decision: Decision
    reason: str
    study: str
    number: int
    changes: tuple[str, ...]
    overrides: tuple[str, ...]
    against: str
    metric: str
    unit: str
    level: float
    p: float | None
    first: Gain
    again: Gain | None
    num_proposals: int
    num_kept: int
    alpha: float
    notes: tuple[str, ...] = ()
    is_repeated: bool = False
    has_failed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of ``try --json``."""
        return asdict(self)

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Say it in a few lines."""
        return sentences("proposal.txt.j2", {"answer": self, "most_seeds": LOOKS[-1]})


def seeds_of(number: int, num_seeds: int) -> list[int]:
    """Return the seeds of a comparison with a kept proposal, far from those that people choose."""
    # A block for each kept proposal: comparisons with the same one share its trials.
    start = _FIRST_SEED + _SEEDS_PER_BLOCK * number
    return list(range(start, start + num_seeds))


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split overrides into those that select a study (scales, storage ...) and those that are proposed."""
    chosen = [
        text
        for text in overrides
        if text.startswith("@") or text.partition("=")[0].partition(".")[0] in NOT_IN_VARIANT
    ]
    return chosen, [text for text in overrides if text not in chosen]


def baseline_of(study: Study, cell: Cell | None = None) -> Study:
    """Reduce a study to a cell, before its search; to its baseline if none is given.

    Raises:
        StudyError: It has seeds that belong to streams.
    """
    reserved = [seed for seed in study.seeds if seed >= _FIRST_SEED]
    if reserved:
        message = f"seed {reserved[0]} belongs to streams of proposals; choose seeds below {_FIRST_SEED}"
        raise StudyError([Problem("seeds", message)], study.name)
    return _read(study, _cell_document(study, cell or cells(study)[0]))


def with_overrides(study: Study, overrides: Mapping[str, JsonValue]) -> Study:
    """Put values into a study that has one cell, by path in the study file."""
    values = study.to_dict()
    for path, value in overrides.items():
        paths.put(values, path, value)
    return _read(study, values)


def kept_code(study: Study, store: ArtifactStore) -> dict[str, str]:
    """Keep the code that a study with one cell runs, in its store.

    Returns:
        The values that name what was kept, by path in the study file; none if the study names no code.
    """
    keep_code = system_of(study).keep_code
    if keep_code is None or not store.is_local:
        return {}
    config = resolve_cell(study, cells(study)[0]).config
    return keep_code(config, Path(store.uri, _CODE))


def with_changes(
    study: Study, changes: Sequence[str], store: ArtifactStore
) -> tuple[Study, dict[str, JsonValue]]:
    """Put ``key=value`` texts into a study that has one cell; an edited script is kept in the store.

    Returns:
        The study, and the values by path in the study file.

    Raises:
        StudyError: Lists all problems: nothing is proposed, data or metrics are changed, or the study's own.
    """
    if not changes:
        hint = "" if system_of(study).keep_code is None else "; an edited script: data.directory=COPY"
        raise StudyError([Problem("", f"a proposal is one or more key=value{hint}")], study.name)
    changed = _read(study, study.to_dict(), changes)
    values = dict(changed._overrides.values)
    code = kept_code(changed, store)
    problems = [
        Problem(path, "what is measured stays the same in a stream; change it in the study, for a new one")
        for path in values.keys() - code.keys()
        if (parts := paths.split(path))[0] != "base" or parts[1] in _MEASURING
    ]
    if problems:
        raise StudyError(problems, study.name)
    values |= {path: value for path, value in code.items() if path in values}
    return with_overrides(study, values), values


def merge_overrides(first: Mapping[str, JsonValue], second: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Put overrides on top of others; a later one replaces what lies inside it."""
    remaining = {
        path: value
        for path, value in first.items()
        if not any(later in paths.ancestors(path) for later in second)
    }
    return {**remaining, **second}


def trial_graph(study: Study, seed: int) -> StageGraph:
    """Build the stage graph of a trial of a study that has one cell, scored on dev alone."""
    return resolve_cell(study, cells(study)[0]).graph(seed, SEARCH_SPLITS)


def data_key(study: Study) -> str:
    """Digest of the corpus that a study with one cell is scored on, or of its settings where none is read."""
    graph = trial_graph(study, 0)
    for stage in sorted(graph.stages, key=graph.depth, reverse=True):
        corpus = stage.inputs.get("corpus")
        if corpus is not None:
            return corpus.fingerprint
    return fingerprint(study.data)


def comparison_study(
    kept: Study,
    proposals: Mapping[str, Study],
    seeds: Sequence[int],
    first: int,
    suffix: str = "stream",
) -> Study:
    """Build the study that compares proposals with the kept config.

    Args:
        kept: The kept config, a study that has one cell.
        proposals: The proposed configs, likewise, by the name of their level.
        seeds: All seeds that the comparison may use.
        first: Number of seeds before the first look; all of them without looks.
        suffix: End of the study's name.
    """
    studies = {_KEPT: kept, **proposals}
    arms = {name: arm.base | {"data": arm.data} for name, arm in studies.items()}
    # Whole sections: a proposal may replace one, and a level can set values but remove none.
    shared = {
        key: value
        for key, value in arms[_KEPT].items()
        if all(sections.get(key, paths.MISSING) == value for sections in arms.values())
    }
    levels = {
        arm: {key: value for key, value in sections.items() if key not in shared}
        for arm, sections in arms.items()
    }
    shared.pop("data", None)
    values = kept.to_dict() | {
        "name": f"{kept.name}-{suffix}",
        "base": shared,
        "factors": {PROPOSAL: {"levels": levels, "baseline": _KEPT}},
        "seeds": list(seeds),
    }
    if first < len(seeds):
        values["sequential"] = {"looks": [first, len(seeds)]}
    return _read(kept, values)


def check_comparable(kept: Study, proposal: Study) -> list[str]:
    """Check that two configs can be compared seed by seed.

    Returns:
        Names of the stages that both have in common and that are trained once for all seeds.

    Raises:
        StudyError: They make the same trials, or a stage that is trained once differs.
    """
    (proposal_trial, proposal_once), (kept_trial, kept_once) = (
        _trained_once(study) for study in (proposal, kept)
    )
    if proposal_trial == kept_trial:
        raise StudyError([Problem("", "it makes the same trials as what is kept")], proposal.name)
    differing = {(proposal_once | kept_once)[key] for key in proposal_once.keys() ^ kept_once.keys()}
    if differing:
        message = (
            f"{', '.join(sorted(differing))} is trained once for all seeds and differs between the two, so "
            "that no number of seeds decides; train it for every seed (is_per_seed: true)"
        )
        raise StudyError([Problem("", message)], proposal.name)
    return sorted(set(proposal_once.values()))


def _trained_once(study: Study) -> tuple[str, dict[str, str]]:
    """Return the fingerprint of a trial, and names by fingerprint of the random stages that seeds share."""
    first, second = (trial_graph(study, seed) for seed in (1, 2))
    second_fingerprints = {stage.fingerprint for stage in second.stages}
    # A stage with a seed that is in both graphs is random, but its seed is not the trial's.
    shared = {
        stage.fingerprint: stage.name
        for stage in first.stages
        if stage.seed is not None and stage.fingerprint in second_fingerprints
    }
    return first.fingerprint, shared


def _cell_document(study: Study, cell: Cell) -> dict[str, Any]:
    """Values of a study that holds one cell of another alone."""
    config = nested_config(study.base, study.data, cell.overrides, {})
    data = config.pop("data")
    values = study.to_dict()
    kept = ("schema_version", "name", "description", "system", "seeds", "objective")
    places = ("resources", "budget", "storage", "tracking")
    return {name: values[name] for name in (*kept, *places)} | {
        "analysis": {"alpha": study.analysis.alpha},
        "data": data,
        "base": config,
    }


def _read(
    study: Study,
    values: dict[str, Any],
    changes: Sequence[str] = (),
) -> Study:
    directory = Path(study.directory) if study.directory is not None else Path.cwd()
    return read_study(documents.from_values(values), changes, {}, study.name, Study, directory)


class Attempt:
    """One proposal, compared with a kept one.

    Args:
        study: The study whose baseline begins the stream.
        changes: The proposed settings, as ``key=value``, on top of the kept ones.
        against: Number of a kept proposal or ``baseline``; None for the newest kept proposal.
        place: Where it runs.

    Raises:
        StudyError: Lists the problems of the proposal.
        NlgraftError: No kept proposal has the number ``against``.
    """

    def __init__(
        self,
        study: Study,
        changes: Sequence[str],
        against: str | None,
        place: Place,
    ) -> None:
        self._place = place
        self._study = study
        base = baseline_of(study)
        # What is kept stays as it is while the script is edited.
        self._base = with_overrides(base, kept_code(base, place.store))
        self._metric = base.objective.metric
        data = data_key(base)
        self._key = fingerprint({"system": study.system, "metric": self._metric, "data": data})
        stream = read_stream(place.store, self._key)
        origin = _config_key(self._base)
        self._begin(origin, stream.compared_with(origin, against), changes)
        last = stream.compared_with(origin, None)
        if against is None and last is not None and last.entered.config == self._step.config:
            # The newest kept proposal is proposed again: answer by what it was compared with, not by itself.
            self._begin(origin, stream.kept(origin).get(last.entered.against), changes)
        self._once = check_comparable(self._kept, self._new)

    def _begin(
        self,
        origin: str,
        chosen: Proposal | None,
        changes: Sequence[str],
    ) -> None:
        """Put the changes on top of a kept proposal, or of the baseline."""
        overrides = {} if chosen is None else chosen.entered.overrides
        self._kept = with_overrides(self._base, overrides)
        self._new, self._changes = with_changes(self._kept, changes, self._place.store)
        self._step = Step(
            kind="proposed",
            stream=self._key,
            study=self._study.variant,
            metric=self._metric,
            origin=origin,
            config=_config_key(self._new),
            against=BASELINE if chosen is None else chosen.entered.number,
            overrides=merge_overrides(overrides, self._changes),
        )

    def answer(self, max_seeds: int) -> Answer:
        """Run the proposal until it is decided, or has that many seeds."""
        stream = append(self._place.store, self._key, self._entry)
        proposal = self._find(stream)
        # Who asks again gets the same answer, even if the noise is known better by now.
        is_repeated = proposal.decided is not None
        verdict, stopped = None, None
        if proposal.decided is None:
            verdict, stopped = self._decide(proposal, max_seeds)
            stream = self._enter(verdict, proposal.entered.number)
            proposal = self._find(stream)
        if proposal.is_kept and proposal.measured is None:
            stream, stopped = self._measure(proposal)
        return self._answer(stream, verdict, stopped, is_repeated)

    def _entry(self, stream: Stream) -> Step | None:
        """The step that enters the proposal at its level; None if it has been entered."""
        if stream.find(self._step) is not None:
            return None
        number = max(stream.proposals, default=0) + 1
        level = stream_level(stream.num_before, stream.num_kept, self._study.analysis.alpha)
        prior = noise_of(stream.proposals.values())
        noise = {} if prior is None else {"prior_df": prior.df, "prior_variance": prior.variance}
        return replace(self._step, number=number, level=level, **noise)

    def _find(self, stream: Stream) -> Proposal:
        proposal = stream.find(self._step)
        assert proposal is not None
        return proposal

    def _pair(
        self,
        number: int,
        block: int,
        num_seeds: int,
        first: int,
    ) -> Study:
        """The study of the kept settings and the proposed ones, on the seeds of a block."""
        seeds = seeds_of(block, num_seeds)
        return comparison_study(self._kept, {str(number): self._new}, seeds, first)

    def _run(
        self,
        pair: Study,
        grant: Callable[[], Mapping[str, int]],
        note: Callable[[], str],
    ) -> str | None:
        """Run the trials of a pair; return the reason why that ended early, or None."""
        return Run(pair, cells(pair), self._place).sweep(grant, note).stop_reason

    def _decide(self, proposal: Proposal, max_seeds: int) -> tuple[Judgement, str | None]:
        entered = proposal.entered
        pair = self._pair(entered.number, entered.against, LOOKS[-1], LOOKS[0])
        looks = _Looks(pair, self._place, proposal, max_seeds, pair.first_seeds)
        title = f"Proposal {entered.number}, {' '.join(entered.texts)}"
        stopped = self._run(pair, looks.grant, lambda: f"{title}: {looks.verdict().decision}")
        verdict = looks.verdict()
        # Entered because later questions about these cells are afterthoughts: their scores have been seen.
        enter_seen(pair, self._study.variant, verdict.gain, self._place.store)
        return verdict, stopped

    def _enter(self, verdict: Judgement, number: int) -> Stream:
        """Enter the verdict in the stream; while undecided, only the seeds that failed."""
        if verdict.decision == "MORE":
            stream = read_stream(self._place.store, self._key)
            for arm, seed in verdict.lost:
                stream = self._append("lost", number, arm=arm, seeds=(seed,))
            return stream
        return self._append(
            "decided",
            number,
            decision=verdict.decision,
            reason=verdict.reason,
            seeds=verdict.gain.seeds,
            gains=verdict.gain.gains,
            p=verdict.p,
        )

    def _append(
        self,
        kind: Literal["lost", "decided", "measured"],
        number: int,
        **values: Any,
    ) -> Stream:
        step = Step(kind=kind, stream=self._key, number=number, **values)
        # If another driver was faster, what it entered stands: see `Proposal.after`.
        return append(self._place.store, self._key, lambda stream: step)

    def _measure(self, proposal: Proposal) -> tuple[Stream, str | None]:
        """Measure a kept proposal on seeds that took no part in any decision."""
        number = proposal.entered.number
        pair = self._pair(number, number, FRESH_SEEDS, FRESH_SEEDS)
        # The seeds that led to keeping it overestimate the gain, so none of them is used again.
        stopped = self._run(pair, dict, lambda: f"Proposal {number}, kept, measured again")
        pairs = read_pairs(pair, self._place.store, FRESH_SEEDS)
        gain = Gain.of(pairs.gains)
        if stopped is not None or pairs.open or len(gain.seeds) < _FEW:
            reason = next(iter(pairs.failed.values()), "not all seeds have ended")
            return read_stream(self._place.store, self._key), stopped or f"its second measurement: {reason}"
        enter_seen(pair, self._study.variant, gain, self._place.store)
        failures = "; ".join(f"{arm}, seed {seed}: {error}" for (arm, seed), error in pairs.failed.items())
        return self._append("measured", number, seeds=gain.seeds, gains=gain.gains, reason=failures), None

    def _answer(
        self,
        stream: Stream,
        verdict: Judgement | None,
        stopped: str | None,
        is_repeated: bool,
    ) -> Answer:
        proposal = self._find(stream)
        entered, decided, measured = proposal.entered, proposal.decided, proposal.measured
        outcome = verdict if decided is None else decided
        assert outcome is not None, "what is undecided was judged just now"
        alpha = self._study.analysis.alpha
        return Answer(
            decision=outcome.decision or "MORE",
            reason=f"ended early: {stopped}" if stopped is not None else outcome.reason,
            study=self._study.variant,
            number=entered.number,
            changes=tuple(Overrides(values=self._changes).texts),
            overrides=tuple(entered.texts),
            against="baseline" if entered.against == BASELINE else str(entered.against),
            metric=self._metric,
            unit=system_of(self._study).metrics[self._metric].unit,
            level=entered.level,
            p=outcome.p,
            first=gain_of(decided) or (Gain.of({}) if verdict is None else verdict.gain),
            again=gain_of(measured, alpha),
            num_proposals=len(stream.proposals),
            num_kept=stream.num_kept,
            alpha=false_share(alpha),
            notes=tuple(self._notes(stream, proposal)),
            is_repeated=is_repeated,
            has_failed=stopped is not None or bool(verdict is not None and verdict.lost),
        )

    def _notes(self, stream: Stream, proposal: Proposal) -> list[str]:
        entered = proposal.entered
        notes = [f"{name} is trained once for all seeds: the answer is about that one" for name in self._once]
        earlier = [other.entered for number, other in stream.proposals.items() if number < entered.number]
        if earlier and all(other.origin != entered.origin for other in earlier):
            notes.append("the study's baseline is not that of earlier proposals: nothing they kept is in it")
        newest = next(reversed(stream.kept(entered.origin)), BASELINE)
        if newest not in (BASELINE, entered.number, entered.against):
            notes.append(f"proposal {newest} was kept last; this one is not compared with it")
        failed_seeds = sorted({seed for arm, seed in proposal.lost if arm == "kept"})
        if failed_seeds:
            notes.append(f"what is kept failed with seed {', '.join(map(str, failed_seeds))}")
        if proposal.measured is not None and proposal.measured.reason:
            notes.append(f"lost when it was measured again: {proposal.measured.reason}")
        if stream.num_unreadable:
            notes.append(
                f"{count(stream.num_unreadable, 'record')} of the store's streams cannot be read; each "
                "counts as a proposal"
            )
        return notes


@dataclass
class _Looks:
    """Grants seeds to both cells of a pair until the proposal is decided."""

    pair: Study
    place: Place
    proposal: Proposal
    max_seeds: int
    num: int

    def verdict(self) -> Judgement:
        """Judge the seeds granted so far."""
        pairs = read_pairs(self.pair, self.place.store, self.num)
        is_last = self.num >= len(self.pair.seeds)
        return judge(pairs, self.proposal.entered, self.proposal.lost, is_last)

    def grant(self) -> Mapping[str, int]:
        """Grant the seeds of the next look, if the present ones have not decided."""
        # A pair that is decided gets no further seeds: looking on would be another test.
        if self.num < min(self.max_seeds, len(self.pair.seeds)):
            verdict = self.verdict()
            if verdict.decision == "MORE" and not verdict.lost:
                next_look = next(look for look in LOOKS if look > self.num)
                self.num = min(next_look, self.max_seeds)
        return {cell.key: self.num for cell in cells(self.pair)}


def _config_key(study: Study) -> str:
    return cell_key(study, cells(study)[0])
