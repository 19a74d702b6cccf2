"""Rules over published figures, claims and their analysis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nlgraft.basics.errors import Problem, nearest
from nlgraft.study.data.claim import Figures, claims_of, gain
from nlgraft.study.data.design import Axes, Cell, axes_of, gain_cells, label_finder, name_cell
from nlgraft.study.data.study import Statement, Study
from nlgraft.study.data.system import Metric
from nlgraft.study.reading.draft import Draft


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


def _analysis_problems(draft: Draft, axes: Axes, cells: Sequence[Cell]) -> Iterator[Problem]:
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


def _named_twice(axes: Axes, cells: Sequence[Cell], named: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """Find names of cells that the design lacks, and two names of the same cell."""
    seen: dict[str, str] = {}
    for place, text in named:
        cell = name_cell(axes, cells, text)
        if isinstance(cell, str):
            yield Problem(place, cell)
        elif seen.setdefault(cell.label, text) is not text:
            yield Problem(place, f"{text!r} and {seen[cell.label]!r} are the same cell, {cell.label!r}")


def _missing_figures(path: str, statement: Statement, figures: Figures) -> Iterator[Problem]:
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


def _figures(draft: Draft, axes: Axes, cells: Sequence[Cell]) -> Figures:
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
