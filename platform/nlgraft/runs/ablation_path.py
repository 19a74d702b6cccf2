"""From default to winner: which changes of a tuned config made its gain (Fawcett and Hoos 2016).

From the default, a cell's settings before its search, at each step the change of the winner's that gains most
on dev is taken. Settings that only exist with another change move with it; a change that is no valid config
yet, or has no effect yet, waits for the others. Each step is the best of several on the very seeds that show
its gain, so its interval is exploratory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from nlgraft.analysis.data.stream import Pairs, read_pairs
from nlgraft.analysis.policy.proposals import Gain, enter_seen
from nlgraft.analysis.rendering.typesetting import Table, interval, make_table, number, probability, sentences
from nlgraft.basics.errors import NlgraftError, StudyError
from nlgraft.runs.proposing import baseline_of, check_comparable, comparison_study, with_overrides
from nlgraft.runs.run import Place, Run
from nlgraft.study.data import paths
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.space import Domain, full_condition, holds, same, sampling_order
from nlgraft.study.planning.selection import chosen_params
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config

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
        trained_once: Stages that are trained once for all seeds.
        steps: The steps so far, from the default on.
        whole: Gain of the last config over the default.
        remaining: Changes that are not made yet, or at the end of the path make no other trials.
        num_waiting: Configs whose trials the next step needs; 0 at the end.
        declared: File of a study of the configs, on seeds that took no part in choosing the path.
    """

    metric: str
    trained_once: list[str]
    steps: list[Step]
    whole: Gain
    remaining: Changes
    num_waiting: int
    declared: str

    def table(self) -> Table:
        """Tabulate the steps, and the whole path below them."""
        rows = [
            _row(_text(step.changes), step.gain)
            | {"p": probability(step.p), "best of": str(step.num_candidates)}
            for step in self.steps
        ]
        notes = sentences("path.txt.j2", {"path": self, "remaining": _text(self.remaining)})
        return make_table([*rows, _row("all of them", self.whole)], notes=notes)


def follow(
    study: Study,
    cell: Cell,
    place: Place,
    *,
    is_running: bool,
) -> AblationPath:
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
    trained_once = check_comparable(default, _with_changes(default, _union(blocks)))
    reached, steps, num_waiting = [default], [], 0
    # Where no change makes other trials by itself, all that are left may do so together.
    while pairs := _pairs(reached[-1], blocks) or _pairs(reached[-1], [_union(blocks)]):
        joint = _comparison(reached[-1], [proposal for _, proposal, _ in pairs])
        if is_running:
            Run(joint, cells(joint), place).sweep(dict, lambda: "A step from default to winner")
        read = [read_pairs(pair, place.store, len(pair.seeds)) for _, _, pair in pairs]
        if any(values.open for values in read):
            num_waiting = len(cells(joint))
            break
        gains = [_gain(values, study) for values in read]
        # What was seen of all of them, before the best is shown.
        for (_, _, pair), gain in zip(pairs, gains, strict=True):
            enter_seen(pair, study.variant, gain, place.store)
        means = [(gain.mean, index) for index, gain in enumerate(gains) if gain.mean is not None]
        if not means:
            raise NlgraftError(f"{study.variant}: no seed has finished in two configs of a step")
        _, best = max(means)
        changes, proposal, _ = pairs[best]
        steps.append(Step(changes, gains[best], _p_value(gains[best]), len(pairs)))
        reached.append(proposal)
        blocks = [block for block in blocks if not block.keys() <= changes.keys()]
    whole = Gain.of({})
    if steps:
        pair = _comparison(default, reached[-1:])
        whole = _gain(read_pairs(pair, place.store, len(pair.seeds)), study)
    following = max(study.seeds) + 1
    fresh_seeds = range(following, following + len(study.seeds))
    declared = _comparison(default, reached[1:], fresh_seeds).to_yaml() if steps and not num_waiting else ""
    metric = study.objective.metric
    return AblationPath(metric, trained_once, steps, whole, _union(blocks), num_waiting, declared)


def change_blocks(
    params: Changes,
    space: Mapping[str, Domain],
    config: Mapping[str, Any],
) -> list[Changes]:
    """Divide what a search changed into changes that can be made one after another.

    Args:
        params: Values that the search chose.
        space: Domains by path.
        config: The default's nested values.
    """
    blocks = []
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


def _pairs(current: Study, blocks: list[Changes]) -> list[tuple[Changes, Study, Study]]:
    """List the changes that make other trials, each with its config and the study that compares it."""
    pairs = []
    for changes in blocks:
        with suppress(StudyError):
            proposal = _with_changes(current, changes)
            pairs.append((changes, proposal, _comparison(current, [proposal])))
    return pairs


def _comparison(
    current: Study,
    configs: list[Study],
    seeds: Sequence[int] = (),
) -> Study:
    arms = {str(number): config for number, config in enumerate(configs, 1)}
    return comparison_study(current, arms, seeds or current.seeds, len(current.seeds), "path")


def _with_changes(study: Study, changes: Changes) -> Study:
    overrides = {path if paths.contains("data", path) else f"base.{path}": changes[path] for path in changes}
    return with_overrides(study, overrides)


def _union(blocks: Iterable[Changes]) -> Changes:
    return {path: value for block in blocks for path, value in block.items()}


def _gain(values: Pairs, study: Study) -> Gain:
    return Gain.of({} if values.why_not else values.gains, study.analysis.alpha)


def _p_value(gain: Gain) -> float | None:
    # Seeds that agree but for rounding leave nothing to test.
    if np.allclose(gain.gains, gain.gains[0], rtol=1e-12, atol=0):
        return None
    # scipy gives the result its fields at run time.
    return float(ttest_1samp(gain.gains, 0.0).pvalue)  # pyright: ignore[reportAttributeAccessIssue]


def _row(text: str, gain: Gain) -> dict[str, str]:
    mean = number(gain.mean, _DECIMALS, is_signed=True)
    return {"change": text, "gain": mean, "interval": interval(gain.interval, _DECIMALS)}


def _text(changes: Changes) -> str:
    return ", ".join(f"{path}={value}" for path, value in changes.items())
