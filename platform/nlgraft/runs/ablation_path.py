"""From default to winner: which changes of a tuned config made its gain (Fawcett and Hoos 2016).

From the default, a cell's settings before its search, at each step the change of the winner's that gains most
on dev is taken. Settings that only exist with another change move with it; a change that is no valid config
yet, or has no effect yet, waits for the others. Each step is the best of several on the very seeds that show
its gain, so its interval is exploratory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from nlgraft.analysis.data.stream import Pairs, read_pairs
from nlgraft.analysis.estimates.comparison import rounded_all
from nlgraft.analysis.policy.proposals import Gain, enter_seen
from nlgraft.analysis.rendering.typesetting import Table, interval, make_table, number, probability
from nlgraft.basics.errors import NlgraftError, StudyError
from nlgraft.basics.wording import count
from nlgraft.runs.proposing import Place, baseline_of, check_comparable, comparison_study, with_overrides
from nlgraft.runs.run import Run, tracking_uri
from nlgraft.study.data import paths
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.space import Domain, full_condition, holds, same, sampling_order
from nlgraft.study.planning.selection import chosen_params
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system_import import system_of

_SUFFIX = "path"
_DECIMALS = 3

Changes = Mapping[str, Any]
"""Values by dotted path into the config."""


@dataclass(frozen=True)
class Step:
    """One step of a path.

    Attributes:
        changes: The settings that it changes.
        gain: Gain over the config before it, positive being better.
        p: Two-sided p-value of no gain, by a paired t-test; None where it is not defined.
        num_candidates: Number of changes of which this one gained most.
    """

    changes: Changes
    gain: Gain
    p: float | None
    num_candidates: int


@dataclass(frozen=True)
class AblationPath:
    """A path as far as its trials have finished.

    Attributes:
        metric: The objective.
        steps: The steps so far, from the default on.
        whole: Gain of the last config over the default; None before the first step.
        without_effect: Changes that make no other trials.
        waiting: Study of the trials that the next step needs; None at the end.
        declared: Study of the path's configs on seeds that took no part in choosing it; None before the end.
        notes: Stages that are trained once for all seeds.
    """

    metric: str
    steps: tuple[Step, ...]
    whole: Gain | None
    without_effect: Changes
    waiting: Study | None
    declared: Study | None
    notes: tuple[str, ...]

    def table(self) -> Table:
        """Tabulate the steps, and the whole path below them."""
        rows = [
            {
                "change": _text(step.changes),
                "gain": number(step.gain.mean, _DECIMALS, is_signed=True),
                "interval": interval(step.gain.interval, _DECIMALS),
                "p": probability(step.p),
                "best of": str(step.num_candidates),
            }
            for step in self.steps
        ]
        if self.whole is not None:
            gain = number(self.whole.mean, _DECIMALS, is_signed=True)
            rows.append(
                {"change": "all of them", "gain": gain, "interval": interval(self.whole.interval, _DECIMALS)}
            )
        notes = [
            f"{name} is trained once for all seeds: the gains are about that one." for name in self.notes
        ]
        if self.steps:
            notes.append(
                f"Gain: in {self.metric}, over the row above; first over the default. A step is the best of "
                "several on these seeds, so it looks larger than it is: exploratory, no verdict."
            )
        if self.without_effect:
            notes.append(f"Without effect: {_text(self.without_effect)}.")
        if self.waiting is not None:
            num_configs, num_seeds = len(cells(self.waiting)), len(self.waiting.seeds)
            notes.append(f"The next step needs {count(num_configs, 'config')} x {count(num_seeds, 'seed')}.")
        return make_table(rows, notes=notes)

    def to_json(self) -> dict[str, Any]:
        """Return the path as JSON values."""
        return rounded_all(
            {
                "metric": self.metric,
                "steps": [asdict(step) for step in self.steps],
                "whole": None if self.whole is None else asdict(self.whole),
                "without_effect": self.without_effect,
                "is_complete": self.waiting is None,
                "notes": self.notes,
            }
        )


@dataclass(frozen=True)
class _Candidate:
    """A config after one more change, and the study that compares it with the config before."""

    changes: Changes
    config: Study
    pair: Study


def follow(study: Study, cell: Cell, place: Place, *, is_running: bool) -> AblationPath:
    """Follow the path of a cell's search as far as its trials have finished, or run them to its end.

    Args:
        study: A study whose search in the cell has ended.
        cell: The cell.
        place: Where trials are, and run, scored on dev alone.
        is_running: Run what is missing.

    Raises:
        NlgraftError: No search has ended, the default won, or nothing finished that a step could take.
        StudyError: A stage that is trained once for all seeds differs between default and winner.
    """
    params = chosen_params(study, cell, place.store)
    if study.search is None or params is None:
        raise NlgraftError(f"{study.variant}, {cell.label}: no search has ended; run the study first")
    config = resolve_config(study, cell, {}).model_dump(mode="json")
    blocks = change_blocks(params, study.search.space, config)
    if not blocks:
        raise NlgraftError(f"{study.variant}, {cell.label}: the search chose the default")
    default = baseline_of(study, cell)
    notes = check_comparable(default, _with_changes(default, _union(blocks)))
    current, reached, steps, waiting = default, [], [], None
    while candidates := _candidates(current, blocks):
        joint = _study_of(current, [candidate.config for candidate in candidates])
        pairs = [_read(candidate.pair, place) for candidate in candidates]
        if is_running and any(pair.open for pair in pairs):
            uri = tracking_uri(joint, place.store, place.tracking_uri)
            run = Run(joint, place.store, cells(joint), uri, place.address, place.on_event)
            run.sweep(dict, lambda: "A step from default to winner")
            pairs = [_read(candidate.pair, place) for candidate in candidates]
        if any(pair.open for pair in pairs):
            waiting = joint
            break
        step, current = _best(study, candidates, pairs, place)
        steps.append(step)
        reached.append(current)
        blocks = [block for block in blocks if not block.keys() <= step.changes.keys()]
    whole = _gain(_read(_study_of(default, reached[-1:]), place), study) if reached else None
    is_complete = waiting is None and bool(reached)
    return AblationPath(
        study.objective.metric,
        tuple(steps),
        whole,
        {} if waiting else _union(blocks),
        waiting,
        _declared(default, reached) if is_complete else None,
        tuple(notes),
    )


def change_blocks(params: Changes, space: Mapping[str, Domain], config: Mapping[str, Any]) -> list[Changes]:
    """Divide what a search changed into changes that can be made one after another.

    Args:
        params: Values that the search chose.
        space: Domains by path.
        config: The default's nested values.
    """
    blocks: list[Changes] = []
    # A parent comes before what exists only with it.
    for path in sampling_order(space):
        old = paths.get(config, path)
        if path not in params or (old is not paths.MISSING and same(old, params[path])):
            continue
        parents = {
            parent
            for parent, condition in full_condition(path, space).items()
            if not holds({parent: condition}, {parent: paths.get(config, parent)})
        }
        joined = [block for block in blocks if parents & block.keys()]
        blocks = [block for block in blocks if block not in joined]
        blocks.append({**_union(joined), path: params[path]})
    return blocks


def _candidates(current: Study, blocks: list[Changes]) -> list[_Candidate]:
    """List the changes that make other trials; if none does alone, all of them together."""
    singles = [candidate for block in blocks if (candidate := _candidate(current, block)) is not None]
    together = None if singles or not blocks else _candidate(current, _union(blocks))
    return singles if together is None else [together]


def _candidate(current: Study, changes: Changes) -> _Candidate | None:
    try:
        config = _with_changes(current, changes)
        return _Candidate(changes, config, _study_of(current, [config]))
    except StudyError:
        return None


def _best(study: Study, candidates: list[_Candidate], pairs: list[Pairs], place: Place) -> tuple[Step, Study]:
    """Take the candidate that gains most; what was seen of all of them enters the ledger."""
    gains = [_gain(pair, study) for pair in pairs]
    for candidate, gain in zip(candidates, gains, strict=True):
        enter_seen(candidate.pair, study.variant, gain, place.store)
    scored = [(gain.mean, index) for index, gain in enumerate(gains) if gain.mean is not None]
    if not scored:
        raise NlgraftError(f"{study.variant}: no seed has finished in two configs of a step")
    _, index = max(scored)
    gain, candidate = gains[index], candidates[index]
    # Seeds that agree but for rounding leave nothing to test.
    is_constant = np.allclose(gain.gains, gain.gains[0], rtol=1e-12, atol=0)
    p = None if is_constant else float(ttest_1samp(gain.gains, 0.0).pvalue)
    return Step(candidate.changes, gain, p, len(candidates)), candidate.config


def _declared(default: Study, reached: list[Study]) -> Study:
    """Ask for each step over the one before, on fresh seeds: those of the path have chosen it."""
    num_seeds, metrics = len(default.seeds), system_of(default).metrics
    first = max(default.seeds) + 1
    asked = _study_of(default, reached, range(first, first + num_seeds))
    on_test = "test/" + default.objective.metric.removeprefix("dev/")
    metric = on_test if on_test in metrics else default.objective.metric
    claims = [
        {"better": str(number + 1), "worse": str(number), "metric": metric, "source": "none: this path"}
        for number in range(1, len(reached))
    ]
    return with_overrides(asked, {"claims": claims, "seeds": list(asked.seeds)})


def _study_of(current: Study, configs: list[Study], seeds: Iterable[int] = ()) -> Study:
    seeds = list(seeds) or current.seeds
    arms = {str(number): config for number, config in enumerate(configs, 1)}
    return comparison_study(current, arms, seeds, len(seeds), _SUFFIX)


def _with_changes(study: Study, changes: Changes) -> Study:
    overrides = {path if paths.contains("data", path) else f"base.{path}": changes[path] for path in changes}
    return with_overrides(study, overrides)


def _union(blocks: Iterable[Changes]) -> Changes:
    return {path: value for block in blocks for path, value in block.items()}


def _read(pair: Study, place: Place) -> Pairs:
    return read_pairs(pair, place.store, len(pair.seeds))


def _gain(pair: Pairs, study: Study) -> Gain:
    gains = {} if pair.why_not else pair.gains
    return Gain.of(tuple(gains), tuple(gains.values()), study.analysis.alpha)


def _text(changes: Changes) -> str:
    return ", ".join(f"{path}={value}" for path, value in changes.items())
