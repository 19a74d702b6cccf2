"""Rules that need the system: config paths, level values, search domains, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from nlgraft.basics.errors import Problem, StudyError, nearest
from nlgraft.basics.shipped import SYSTEMS_PACKAGE, system_names
from nlgraft.evaluation.metric_config import TextMetric
from nlgraft.study.data import paths
from nlgraft.study.data.design import MAX_CELLS, Axes, Cell, axes_of
from nlgraft.study.data.space import Domain, alternatives, full_condition, holds, same
from nlgraft.study.data.system import System
from nlgraft.study.reading.claim_rules import contradicted_orderings, incomparable_metrics
from nlgraft.study.reading.draft import Draft, Fault
from nlgraft.study.reading.knobs import path_problem
from nlgraft.study.reading.resolving import Resolver
from nlgraft.study.reading.rules import setters
from nlgraft.study.reading.system_import import load_system

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
    space: Mapping[str, Domain] = draft.study.search.space if draft.study.search else {}
    for path, domain in space.items():
        for other in domain.when or {}:
            if other not in space:
                yield f"search.space.{path}.when.{other}", other


def _metric_problems(draft: Draft, cells: Sequence[Cell], system: System) -> Iterator[Problem]:
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
        self._axes: Axes = axes_of(draft.study)
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
        text_metrics: set[str] = set()
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
                yield from _dead_conditions(path, condition, space)
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
            config_values = {path: paths.get(config, path) for path in outside if path not in self._unknown}
            if holds(
                outside, {path: value for path, value in config_values.items() if value is not paths.MISSING}
            ):
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


def _dead_conditions(
    path: str, condition: Mapping[str, Any], space: Mapping[str, Domain]
) -> Iterator[Problem]:
    outside = {other: level for other, level in condition.items() if other not in space}
    level = " and ".join(f"{other} = {level!r}" for other, level in outside.items())
    yield Problem(f"search.space.{path}.when", f"can never hold: no cell has {level}")
