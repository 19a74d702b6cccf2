"""Rules over several parts of a study: names, levels, designs, ranges, claims, and what its system tells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from nlgraft.basics.errors import Problem, StudyError, nearest
from nlgraft.basics.shipped import SYSTEMS_PACKAGE, system_names
from nlgraft.basics.wording import count, visible
from nlgraft.evaluation.metric_config import TextMetric
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data import paths
from nlgraft.study.data.claim import Figures, claims_of, gain
from nlgraft.study.data.design import (
    MAX_CELLS,
    Axes,
    Cell,
    axes_of,
    gain_cells,
    label_finder,
    level_text,
    name_cell,
)
from nlgraft.study.data.part import MAX_NAME_LENGTH
from nlgraft.study.data.space import (
    Domain,
    FloatDomain,
    alternatives,
    duplicate_message,
    full_condition,
    holds,
    same,
    space_problems,
    start_problems,
    table_text,
)
from nlgraft.study.data.study import Factor, Search, Sequential, Statement, Study
from nlgraft.study.data.system import Metric, System
from nlgraft.study.reading.documents import MAX_INT
from nlgraft.study.reading.draft import Draft, Fault, describe
from nlgraft.study.reading.knobs import path_problem
from nlgraft.study.reading.overrides import scale_problems
from nlgraft.study.reading.place_rules import place_problems
from nlgraft.study.reading.resolving import Resolver
from nlgraft.study.reading.system_import import load_system

_NUM_SHOWN = 10
"""Leading characters of a level that MLflow's parallel coordinates show."""
_PROSE = ("description", "source", "reason")
_MAX_ENTRY_PROBLEMS = 20


def study_problems(draft: Draft) -> Iterator[Problem]:
    """Find the problems of a study that need no system to be seen, with their paths in the study file.

    Args:
        draft: The study.
    """
    study = draft.study
    for name, factor in study.factors.items():
        for problem in _factor_problems(factor):
            yield Problem(f"factors.{name}.{problem.path}", problem.message)
    # Two places for the same values would leave open which of them counts.
    if "data" in study.base:
        yield Problem("base.data", "belongs in the study's own field data; move it there")
    yield from _setter_problems(study)
    yield from _design_problems(draft)
    if study.search is not None:
        yield from _search_problems(study.search)
    if study.sequential is not None:
        yield from _look_problems(study.sequential)
    yield from place_problems(study)
    yield from scale_problems(study.scales)


def seed_problems(seeds: Any) -> Iterator[Problem]:
    """Find seeds given twice, even in a list that is wrong otherwise."""
    if isinstance(seeds, list):
        seen: dict[str, int] = {}
        for index, seed in enumerate(seeds):
            first = seen.setdefault(canonical_json(seed), index)
            if first != index:
                yield Problem(
                    f"seeds[{index}]", f"{seed} is the same as seeds[{first}]; write each seed once"
                )


def warnings(study: Study) -> list[str]:
    """List settings that are allowed but probably not intended, one sentence each, beginning with a path."""
    sentences = []
    for name, levels in axes_of(study).levels.items():
        shown: dict[str, str] = {}
        for text in map(level_text, levels):
            other = shown.setdefault(text[:_NUM_SHOWN], text)
            if other != text:
                sentences.append(
                    f"factors.{name}.levels: {other!r} and {text!r} begin with the same {_NUM_SHOWN} "
                    "characters; MLflow's plots show no more"
                )
    if len(study.seeds) == 1:
        sentences.append("seeds: one seed does not show the spread between trainings; give three or more")
    sentences += unused_margins(study)
    for index, column in enumerate(study.published):
        if column.signature is None:
            sentences.append(f"published[{index}]: figures without a signature are not printed beside ours")
    if study.search is not None and not study.search.sampler.is_blind:
        name, num_drawn = study.search.sampler.name, study.search.sampler.num_drawn
        if study.search.trials <= num_drawn:
            sentences.append(
                f"search.sampler: {name} draws its first {num_drawn} trials at random, and a cell has "
                f"{study.search.trials}; lower num_startup_trials, or write random"
            )
        space = study.search.space
        conditional = [path for path, domain in space.items() if space.keys() & (domain.when or {})]
        if name == "gp" and conditional:
            sentences.append(
                f"search.sampler: gp draws at random what is searched under a condition on searched values, "
                f"{', '.join(conditional)}; tpe models it"
            )
    if study.search is not None and study.search.sampler.name == "grid":
        size = _grid_size(study.search)
        if size is not None and study.search.trials < size:
            sentences.append(
                f"search.trials: {study.search.trials} trials visit a part of the grid's {size} points"
            )
    return sentences


def _factor_problems(factor: Factor) -> Iterator[Problem]:
    if factor.is_named and factor.target is not None:
        yield Problem("target", "named levels carry the paths that they set; remove target, or list values")
    if not factor.is_named and factor.target is None:
        yield Problem("target", "is missing: which path of the config do the levels set?")
    levels = factor.level_values
    if not levels:
        yield Problem("levels", "is empty; give the baseline and at least one other level")
        return
    seen: dict[str, int] = {}
    for index, level in enumerate(levels):
        first = seen.setdefault(table_text(level), index)
        if first != index:
            message = duplicate_message(level, levels[first], "levels", first)
            yield Problem(f"levels[{index}]", message)
        if isinstance(level, str):
            is_name = 0 < len(level) <= MAX_NAME_LENGTH and level.isprintable()
            # Labels of cells, and so the names of MLflow's runs, consist of levels.
            if not is_name:
                reason = (
                    f"must be 1 to {MAX_NAME_LENGTH} printable characters; use named levels for longer values"
                )
                yield Problem(f"levels[{index}]", reason)
    if not any(same(factor.baseline, level) for level in levels):
        texts = [level_text(level) for level in levels]
        alike = [level for level in levels if table_text(level) == table_text(factor.baseline)]
        hint = f"Did you mean {alike[0]!r}?" if alike else nearest(level_text(factor.baseline), texts)
        yield Problem("baseline", f"{factor.baseline!r} is not among the levels. {hint}")


def setters(study: Study) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield what sets values of the config: its kind, its place, and each path after its own place."""
    for name, factor in study.factors.items():
        place = f"factors.{name}"
        levels = factor.levels.items() if isinstance(factor.levels, dict) else ()
        named = [
            (f"{place}.levels.{level}.{path}", path)
            for level, values in levels
            for path, _ in paths.leaves(values)
        ]
        if factor.target:
            named.append((f"{place}.target", factor.target))
        yield "factor", place, named
    for name, component in study.components.items():
        place = f"components.{name}"
        yield (
            "component",
            place,
            [(f"{place}.without.{path}", path) for path, _ in paths.leaves(component.without)],
        )
    for path in study.search.space if study.search else ():
        yield "search", f"search.space.{path}", [(f"search.space.{path}", path)]


def _setter_problems(study: Study) -> Iterator[Problem]:
    shared_names = set(study.factors) & set(study.components)
    for name in study.components:
        if name in shared_names:
            yield Problem(f"components.{name}", f"a factor is called {name!r} too; rename one")
    owners = [(kind, place, {path for _, path in named}) for kind, place, named in setters(study)]
    for index, (kind, place, own_paths) in enumerate(owners):
        for other_kind, other, other_paths in owners[:index]:
            # One departure at a time leaves no doubt what a removed component means, nor do two components.
            is_ambiguous = study.design.kind in ("full", "cells") or kind == other_kind != "component"
            if kind != "search" and not is_ambiguous:
                continue
            for path in sorted(own_paths):
                if any(paths.overlap(path, other_path) for other_path in other_paths):
                    verb = "searches" if kind == "search" else "sets"
                    yield Problem(place, f"{verb} {path}, which {other} sets too; one path has one owner")
                    break


def usable_cells(draft: Draft) -> list[Cell]:
    """Build the cells of a study that may be wrong; none where it is not certain which they are."""
    axes = axes_of(draft.study)
    is_read = draft.can_use("factors", "components", "design", "exclude")
    if not is_read or any(True for _ in _entries_problems(axes)):
        return []
    try:
        return axes.cells()
    except StudyError:
        return []


def _design_problems(draft: Draft) -> Iterator[Problem]:
    study = draft.study
    axes = axes_of(study)
    if study.design.kind == "cells" and not study.design.cells:
        yield Problem("design.cells", "is empty; list cells as {factor: level}")
    if study.design.kind != "cells" and study.design.cells:
        yield Problem("design.cells", f"is used by kind cells only, the kind is {study.design.kind}")
    if study.design.kind == "leave_one_out" and not study.components and draft.can_use("components"):
        yield Problem("components", "is empty: leave_one_out needs components to leave out")
    if study.design.kind != "full" and study.design.idle:
        yield Problem("design.idle", f"is used by kind full only, the kind is {study.design.kind}")
    if not draft.can_use("factors", "components"):
        return
    unknown = list(_entries_problems(axes))
    yield from unknown
    # Cells of a wrong design would only repeat its problems.
    if unknown or not draft.can_use("design", "exclude"):
        return
    yield from _exclude_problems(axes)
    try:
        axes.cells()
    except StudyError as error:
        yield from error.problems


def _entries_problems(axes: Axes) -> Iterator[Problem]:
    for place, entries in (("design.cells", axes.design.cells), ("exclude", axes.exclude)):
        entry_problems = (
            Problem(f"{place}[{index}]{problem.path}", problem.message)
            for index, entry in enumerate(entries)
            for problem in _entry_problems(axes, entry)
        )
        yield from itertools.islice(entry_problems, _MAX_ENTRY_PROBLEMS)
        if next(entry_problems, None) is not None:
            yield Problem(place, f"more entries are wrong; these are the first {_MAX_ENTRY_PROBLEMS}")
    for index, idle in enumerate(axes.design.idle):
        place = f"design.idle[{index}]"
        if idle.factor not in axes.levels:
            hint = nearest(idle.factor, list(axes.levels))
            yield Problem(f"{place}.factor", f"there is no factor {idle.factor!r}. {hint}")
        if idle.factor in idle.when:
            yield Problem(f"{place}.when.{idle.factor}", "is the idle factor itself; name another one")
        for name, levels in idle.when.items():
            for level in alternatives(levels):
                for problem in _entry_problems(axes, {name: level}):
                    yield Problem(f"{place}.when{problem.path}", problem.message)


def _entry_problems(axes: Axes, entry: Mapping[str, Any]) -> Iterator[Problem]:
    if not entry:
        yield Problem("", "is empty; name at least one factor and its level")
    for name, level in entry.items():
        if name not in axes.levels:
            yield Problem(f".{name}", f"there is no factor {name!r}. {nearest(name, list(axes.levels))}")
        elif axes.index_of(name, level) is None:
            texts = [level_text(choice) for choice in axes.levels[name]]
            hint = nearest(level_text(level), texts)
            yield Problem(f".{name}", f"{level!r} is not a level of {name}. {hint}")


def _exclude_problems(axes: Axes) -> Iterator[Problem]:
    # Every comparison needs the baseline.
    if axes.is_excluded({}):
        yield Problem("exclude", "drops the baseline, which every other cell is compared with")
    if not axes.exclude or axes.is_vast:
        return
    for index in axes.unused_exclusions:
        yield Problem(f"exclude[{index}]", "matches no cell of the design; remove it")


def _search_problems(search: Search) -> Iterator[Problem]:
    if not search.space:
        # An empty space was refused when it was read.
        return
    for problem in space_problems(search.space):
        yield Problem(f"search.space.{problem.path}", problem.message)
    name = search.sampler.name
    for path, domain in search.space.items():
        if name == "grid" and isinstance(domain, FloatDomain) and domain.step is None:
            yield Problem(f"search.space.{path}", "a grid needs a step here, or a categorical domain")
    if search.sampler.is_blind and search.sampler.num_startup_trials is not None:
        yield Problem("search.sampler.num_startup_trials", f"{name} has none; leave it out, or use tpe")
    for problem in start_problems(search.space, search.start):
        yield Problem(f"search.start{problem.path}", problem.message)
    if search.start and name == "grid":
        yield Problem("search.start", "a grid visits all its points; leave it out, or use another sampler")
    if len(search.start) > search.trials:
        yield Problem("search.start", f"has {len(search.start)} entries for {count(search.trials, 'trial')}")
    size = _grid_size(search) if name == "grid" else None
    if size is not None and search.trials > size:
        yield Problem("search.trials", f"the grid has {size} points; at most {size} trials differ")
    scheduler = search.active_scheduler
    if scheduler is None or scheduler.max_steps is None:
        return
    if scheduler.max_steps <= scheduler.grace_steps:
        message = (
            f"{scheduler.max_steps} is not above grace_steps, {scheduler.grace_steps}: nothing would stop"
        )
        yield Problem("search.trial_scheduler.max_steps", message)


def _grid_size(search: Search) -> int | None:
    size = math.prod(domain.num_values for domain in search.space.values())
    return int(size) if 0 < size < math.inf else None


def _look_problems(planned: Sequential) -> Iterator[Problem]:
    for index, (before, after) in enumerate(itertools.pairwise(planned.looks), start=1):
        if after <= before:
            yield Problem(f"sequential.looks[{index}]", f"{after} is not above {before}; looks ascend")


def value_problems(values: Any, path: str = "") -> Iterator[Problem]:
    """Find integers too large for 64 bits, and text with characters that control a terminal."""
    if isinstance(values, dict | list):
        entries = values.items() if isinstance(values, dict) else enumerate(values)
        for key, value in entries:
            for text in (key, value if key in _PROSE else ""):
                if isinstance(text, str) and visible(text) != text:
                    message = f"{ascii(text)[:60]} has characters that control a terminal; leave them out"
                    yield Problem(paths.join(path, key), message)
            yield from value_problems(value, paths.join(path, key))
    elif isinstance(values, int) and abs(values) > MAX_INT:
        yield Problem(path, f"{describe(values)} is too large; whole numbers go up to {MAX_INT:,}")


# Rules that need the system: config paths, level values, search domains, metrics.


_REPORTED = ("published", "claims", "analysis")
"""Fields whose metrics are reported and select nothing."""
_STOPS_BY = "search.trial_scheduler.metric"


def system_problems(draft: Draft, cells: Sequence[Cell]) -> Iterator[Problem]:
    """Find the problems of a study that only its system can tell, with their paths in the study file.

    Where the system itself cannot be used, that is the only problem, unless its package alone was left out.
    ``cells`` are the `usable_cells`.
    """
    if not draft.can_use("system"):
        return
    try:
        system = load_system(draft.study.system)
    except StudyError as error:
        yield from error.problems
        shipped = f"{SYSTEMS_PACKAGE}.{draft.study.system}"
        if shipped not in system_names():
            return
        system = load_system(shipped)
    # Learned metrics and further test sets add metrics that rules have to know.
    system = system.of_study(draft.study.data, draft.study.base)
    yield from _metric_problems(draft, cells, system)
    unknown: set[str] = set()
    for place, path in _config_paths(draft):
        reason = path_problem(system.config_type, path)
        if reason is not None:
            unknown.add(path)
            yield Problem(place, reason)
    if not draft.can_use("base", "data"):
        return
    checker = _CellChecker(draft, cells, system, unknown)
    yield from checker.problems()
    computed = checker.text_metrics()
    for path, name in _named_metrics(draft) if computed else ():
        text_metric = name.partition("/")[2]
        if name in system.metrics and text_metric in get_args(TextMetric) and text_metric not in computed:
            yield Problem(path, f"{name} is not computed: add {text_metric} to base.score.metrics")


def _named_metrics(draft: Draft) -> list[tuple[str, str]]:
    """The metrics of claims and of the objective, after their places in the file."""
    named = [(f"{path}.metric", metric) for path, statement in draft.claims for metric in statement.metric]
    named += [
        (f"{path}.worse_metric", statement.worse_metric)
        for path, statement in draft.claims
        if statement.worse_metric
    ]
    if draft.can_use("objective"):
        named.append(("objective.metric", draft.study.objective.metric))
    return named


def _config_paths(draft: Draft) -> Iterator[tuple[str, str]]:
    """Every config path that the study names, after its place in the file."""
    for _, _, named in setters(draft.study):
        yield from named
    space = draft.study.search.space if draft.study.search else {}
    for path, domain in space.items():
        for other in domain.when or {}:
            if other not in space:
                yield f"search.space.{path}.when.{other}", other


def _metric_problems(
    draft: Draft,
    cells: Sequence[Cell],
    system: System,
) -> Iterator[Problem]:
    metric_names, objective = list(system.metrics), draft.study.objective
    named = [(f"{path}.metric", column.metric) for path, column in draft.published]
    named += _named_metrics(draft)
    if draft.can_use("analysis"):
        named += [(paths.join("analysis.margin", metric), metric) for metric in draft.study.analysis.margin]
    tracked = [name for name in metric_names if system.metrics[name].is_tracked and name.startswith("dev/")]
    scheduler = draft.study.search and draft.study.search.active_scheduler
    if scheduler is not None:
        by_objective = objective.metric if objective.metric in metric_names else None
        if stops_by := scheduler.metric or by_objective:
            named.append((_STOPS_BY, stops_by))
    for path, name in named:
        if name not in system.metrics:
            yield Problem(path, f"{system.name} reports no metric {name!r}. {nearest(name, metric_names)}")
        elif system.metrics[name].split == "test" and not path.startswith(_REPORTED):
            dev = [other for other in metric_names if system.metrics[other].split == "dev"]
            hint = nearest(name, dev)
            yield Problem(
                path, f"{name!r} is computed on the test set, which nothing may be selected by. {hint}"
            )
        elif system.metrics[name].is_derived and not path.startswith(_REPORTED):
            yield Problem(path, f"{name!r} is known only when all trials have ended; name it in claims")
        elif path == _STOPS_BY and tracked and name not in tracked:
            # With any other metric nothing would ever be stopped.
            message = f"{name!r} is not reported while a trial trains; reported: {', '.join(tracked)}"
            yield Problem(path, message)
    metric = system.metrics.get(objective.metric)
    if metric is not None and metric.direction != objective.direction:
        message = f"{objective.metric} is a metric to {metric.direction}, not to {objective.direction}"
        yield Problem("objective.direction", message)
    yield from contradicted_orderings(draft, cells, system.metrics)
    yield from incomparable_metrics(draft, system.metrics)


class _CellChecker:
    """Validates the config of every cell, and the ends of every searched domain."""

    def __init__(
        self,
        draft: Draft,
        cells: Sequence[Cell],
        system: System,
        unknown: set[str],
    ) -> None:
        self._study = draft.study
        self._axes = axes_of(draft.study)
        self._resolver = Resolver(system, draft.study.base, draft.study.data, unknown)
        self._unknown = unknown
        self._design_cells = cells

    def problems(self) -> Iterator[Problem]:
        """All problems; one that the baseline has is not repeated for the other cells."""
        baseline = self._axes.cell({})
        _, baseline_faults = self._resolver.faults(baseline, {})
        placed = [self._resolver.place(fault, baseline, {}) for fault in baseline_faults]
        strays = self._stray_baselines()
        yield from (problem for problem in placed if problem.path not in strays)
        cells = self._cells()
        for cell in cells:
            yield from self._new_problems(cell, {}, list(baseline_faults))
        for cell in [baseline, *cells]:
            # The files of most cells are those of the baseline.
            if cell is baseline or any(path.startswith("data.") for path in cell.overrides):
                for fault in self._resolver.file_faults(cell, self._study.directory):
                    yield self._resolver.place(fault, cell, {})
        yield from self._space_problems(baseline, cells, baseline_faults)

    def text_metrics(self) -> set[str]:
        """The metrics of text that some cell computes; none where no config tells, or one is refused."""
        text_metrics = set()
        for cell in (self._axes.cell({}), *self._design_cells):
            config, _ = self._resolver.faults(cell, {})
            metrics = getattr(getattr(config, "score", None), "metrics", None)
            if metrics is None:
                return set()
            text_metrics.update(metrics)
        return text_metrics

    def _stray_baselines(self) -> set[str]:
        """Places of baselines that are none of their factor's levels, which is their only problem."""
        return {
            f"factors.{name}.baseline"
            for name, factor in self._study.factors.items()
            if not any(same(factor.baseline, level) for level in factor.level_values)
        }

    def _cells(self) -> list[Cell]:
        """The cells, and every single level that no cell may use; of a vast factor the first ones."""
        cells = [
            self._axes.cell({name: level})
            for name, levels in self._axes.levels.items()
            for level in levels[:MAX_CELLS]
        ]
        cells += self._design_cells
        # Cells of the design and single levels overlap; each config is validated once.
        by_key = {cell.key: cell for cell in cells if not cell.is_baseline}
        return [cell for cell in by_key.values() if not self._axes.is_excluded(cell.levels)]

    def _new_problems(
        self,
        cell: Cell,
        params: Mapping[str, Any],
        seen: list[Fault],
        usual: Sequence[Fault] = (),
    ) -> Iterator[Problem]:
        """Yield the problems of a cell in neither ``seen`` nor ``usual``, and add them to ``seen``."""
        _, faults = self._resolver.faults(cell, params)
        for fault in faults:
            if fault not in seen and fault not in usual:
                seen.append(fault)
                yield self._resolver.place(fault, cell, params)

    def _space_problems(
        self,
        baseline: Cell,
        cells: list[Cell],
        baseline_faults: list[Fault],
    ) -> Iterator[Problem]:
        domains = self._study.search.space if self._study.search else {}
        space = {path: domain for path, domain in domains.items() if path not in self._unknown}
        # A domain is tried in a cell that reads it, the baseline if that does.
        hosts = [baseline, *cells]
        configs = [self._resolver.faults(cell, {})[0] for cell in hosts] if space else []
        values = [config.model_dump(mode="json") if config is not None else None for config in configs]
        seen = list(baseline_faults)
        low: dict[str, Any] = {}
        high: dict[str, Any] = {}
        for path, domain in space.items():
            condition = full_condition(path, space)
            host = self._host(condition, space, hosts, values)
            if host is not None:
                inside = {
                    other: alternatives(levels)[0]
                    for other, levels in condition.items()
                    if other in space and alternatives(levels)
                }
                yield from self._domain_problems(path, domain, inside, host, seen)
            elif self._design_cells and None not in values and self._unknown.isdisjoint(condition):
                outside = {other: level for other, level in condition.items() if other not in space}
                level = " and ".join(f"{other} = {level!r}" for other, level in outside.items())
                yield Problem(f"search.space.{path}.when", f"can never hold: no cell has {level}")
            probes = list(domain.probes().values())
            if probes and not domain.when:
                low[path], high[path] = probes[0], probes[-1]
        for cell in hosts if space else ():
            _, usual = self._resolver.faults(cell, {})
            for params in (low, high):
                yield from self._new_problems(cell, params, seen, usual)

    def _host(
        self,
        condition: Mapping[str, Any],
        space: Mapping[str, Domain],
        hosts: list[Cell],
        values: list[dict[str, Any] | None],
    ) -> Cell | None:
        """The first cell that meets a domain's condition on the config; None where no cell does."""
        outside = {path: level for path, level in condition.items() if path not in space}
        if not outside:
            return hosts[0]
        for cell, config in zip(hosts, values, strict=True):
            if holds(outside, paths.get_all(config, outside.keys() - self._unknown)):
                return cell
        return None

    def _domain_problems(
        self,
        path: str,
        domain: Domain,
        condition: Mapping[str, Any],
        host: Cell,
        seen: list[Fault],
    ) -> Iterator[Problem]:
        """Try both ends or every choice, with the domain's own condition met."""
        where = f"search.space.{path}"
        for place, value in domain.probes().items():
            for problem in self._new_problems(host, {**condition, path: value}, seen):
                is_own = problem.path == where
                yield Problem(f"{where}.{place}" if is_own else problem.path, problem.message)


# Rules of claims.


def claim_problems(draft: Draft, cells: Sequence[Cell]) -> Iterator[Problem]:
    """Find unknown cells, ambiguous claims, and claims whose figures are published nowhere.

    Args:
        draft: The study.
        cells: Its cells; none where it is not certain which they are.
    """
    axes = axes_of(draft.study)
    if draft.can_use("analysis"):
        yield from _analysis_problems(draft, axes, cells)
    figures = _figures(draft, axes, cells)
    for path, column in draft.published:
        if cells:
            yield from _named_twice(axes, cells, [(f"{path}.values.{text}", text) for text in column.values])
    for path, statement in draft.claims:
        wrong = [Problem(path + problem.path, problem.message) for problem in _claim_form(statement)]
        # Without certain cells a name cannot be judged, and a malformed claim has no names to judge.
        if cells and not wrong:
            named = _named_cells(path, statement)
            # With a metric of its own a cell may be compared with itself.
            groups = (
                [named] if statement.worse_metric is None else [[place_and_text] for place_and_text in named]
            )
            wrong += [problem for group in groups for problem in _named_twice(axes, cells, group)]
            if not wrong and draft.can_use("published"):
                wrong += _missing_figures(path, statement, figures)
        yield from wrong


def _analysis_problems(
    draft: Draft,
    axes: Axes,
    cells: Sequence[Cell],
) -> Iterator[Problem]:
    """Find a family without claims, and a ``gains_over`` that is no factor or is crossed with none."""
    if draft.study.analysis.family == "claims" and not draft.claims and draft.can_use("claims"):
        yield Problem("analysis.family", "is 'claims', but there are none; use all_cells")
    over = draft.study.analysis.gains_over
    if over is None or not draft.can_use("factors", "components"):
        return
    if over not in axes.levels:
        yield Problem("analysis.gains_over", f"no factor '{over}'. {nearest(over, list(axes.levels))}")
    elif cells and not gain_cells(draft.study, cells):
        message = f"no other factor is crossed with '{over}': use design {{kind: full}} and a second factor"
        yield Problem("analysis.gains_over", message)


def _named_cells(path: str, statement: Statement) -> list[tuple[str, str]]:
    named = [(f"{path}.better", statement.better)]
    named += [(f"{path}.worse", text) for text in statement.worse]
    named += [(f"{path}.exceeds", text) for text in statement.exceeds or ()]
    return [(place, text) for place, text in named if text is not None]


def _named_twice(
    axes: Axes,
    cells: Sequence[Cell],
    named: Sequence[tuple[str, str]],
) -> Iterator[Problem]:
    """Find names of cells that the design lacks, and two names of the same cell."""
    seen: dict[str, str] = {}
    for place, text in named:
        cell = name_cell(axes, cells, text)
        if isinstance(cell, str):
            yield Problem(place, cell)
        elif seen.setdefault(cell.label, text) is not text:
            yield Problem(place, f"{text!r} and {seen[cell.label]!r} are the same cell, {cell.label!r}")


def _missing_figures(
    path: str,
    statement: Statement,
    figures: Figures,
) -> Iterator[Problem]:
    for names in statement.comparisons:
        for metric in statement.metric or [None]:
            # Each comparison alone, since the statement as a whole may have figures of another one.
            part = {"worse": names[1:2], "metric": [metric] if metric else []}
            claim = statement.model_copy(update=part)
            if not any(True for _ in figures.claims(claim)):
                of_metric = f"{metric} of " if metric else ""
                message = (
                    f"no entry of published has {of_metric}{' and '.join(map(repr, names))}; "
                    "add the figures there, or give metric and source for an ordering without figures"
                )
                yield Problem(path, message)


def _claim_form(statement: Statement) -> Iterator[Problem]:
    if not statement.comparisons:
        missing = "better" if statement.better is None else "worse"
        yield Problem(f".{missing}", "is missing; a claim names two cells")
    if statement.data and statement.source is None:
        yield Problem(".data", "belongs to the entry of published that has the figures; leave it out here")
    elif statement.source is not None and not statement.metric:
        yield Problem(".metric", "is missing; an ordering without figures names its metric")
    if statement.worse_metric is not None:
        if statement.source is None or len(statement.metric) != 1 or statement.exceeds:
            yield Problem(".worse_metric", "needs better and worse, one metric, a source, and no exceeds")
        elif statement.metric == [statement.worse_metric]:
            yield Problem(".worse_metric", "is the metric itself; leave it out")


def _figures(
    draft: Draft,
    axes: Axes,
    cells: Sequence[Cell],
) -> Figures:
    return Figures((column for _, column in draft.published), label_finder(axes, cells))


def contradicted_orderings(
    draft: Draft, cells: Sequence[Cell], metrics: Mapping[str, Metric]
) -> Iterator[Problem]:
    """Find orderings that their own published figures contradict."""
    figures = _figures(draft, axes_of(draft.study), cells)
    for path, statement in draft.claims:
        for claim in figures.claims(statement):
            metric, printed = metrics.get(claim.metric), figures.printed(claim)
            if metric is None or not printed:
                continue
            # A margin allows the better cell to be that much worse.
            sign = 1 if metric.direction == "maximize" else -1
            if sign * gain(printed) < -claim.margin:
                named = zip(claim.cells, printed, strict=True)
                message = (
                    f"{', '.join(f'{cell} has {figure:g}' for cell, figure in named)} ({claim.source}), "
                    f"but {claim.metric} is a metric to {metric.direction}"
                )
                yield Problem(path, message)


def incomparable_metrics(draft: Draft, metrics: Mapping[str, Metric]) -> Iterator[Problem]:
    """Find claims that compare metrics of different units or directions."""
    for path, statement in draft.claims:
        pair = [*statement.metric[:1], statement.worse_metric]
        kinds = [f"{metrics[name].unit}, to {metrics[name].direction}" for name in pair if name in metrics]
        if len(kinds) == len(pair) and len({*kinds}) > 1:
            message = f"{statement.worse_metric} is in {kinds[1]}; {statement.metric[0]} is in {kinds[0]}"
            yield Problem(f"{path}.worse_metric", message)


def unused_margins(study: Study) -> Iterator[str]:
    """Warn of margins on metrics that are neither the objective's nor a claim's."""
    claimed = {claim.metric for claim in claims_of(study)}
    deciding = {f"{split}/{study.objective.metric.partition('/')[2]}" for split in ("dev", "test")}
    for metric in study.analysis.margin:
        if metric not in claimed | deciding:
            yield (
                f"analysis.margin.{metric}: nothing is decided about {metric}, which is neither the "
                "objective nor the metric of a claim; declare a claim on it"
            )
