"""The tables of a report, as text entries for Markdown, LaTeX, HTML and terminals alike."""

from __future__ import annotations

from collections.abc import Sequence

from nlgraft.analysis.data.trials import CellResult, TrialResult
from nlgraft.analysis.estimates.comparison import ONE_SEED, Comparison
from nlgraft.analysis.policy.claims import ClaimResult
from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.analysis.policy.sensitivity import MANY_LINES, WithoutSeeds, sensitivities
from nlgraft.analysis.rendering.typesetting import (
    NO_BREAK,
    NOTHING,
    Entry,
    Row,
    Table,
    grouped,
    interval,
    make_table,
    num_decimals,
    number,
    probability,
)
from nlgraft.basics.wording import count
from nlgraft.study.data.claim import gain
from nlgraft.study.data.design import level_text

FEW_SEEDS = 5
"""Below this many seeds the variance, and with it the detectable difference, is given as an interval."""

Compared = Sequence[tuple[str, Comparison]]
"""Comparisons of one table, on one metric, with the names of their rows."""


def comparison_notes(result: ComparedResults, compared: Compared) -> list[str]:
    """Explain the marks in a table of comparisons, then list the comparisons' own notes."""
    marks = []
    if any(result.standing(comparison) != "open" for _, comparison in compared):
        marks.append(_star(result))
    marks += _margin_note(result, compared)
    if any(comparison.scope == "segments" for _, comparison in compared):
        marks.append(f"† {ONE_SEED}; nothing is decided.")
    if any(comparison.smallest_detectable is not None for _, comparison in compared):
        marks.append(
            "Detectable: the true difference that so many seeds find in four of five such studies; below "
            f"{FEW_SEEDS} seeds only a range is known. Seeds needed: the first look that probably decides."
        )
    notes = grouped(
        (note, label)
        for label, comparison in compared
        for note in (*comparison.notes, comparison.noise)
        if note not in ("", ONE_SEED)
    )
    return [
        *marks,
        *_bare_intervals(result, compared),
        *_equal_within(result, compared),
        *_family(compared),
        *scopes(compared),
        *(f"{', '.join(labels)}: {note}." for note, labels in notes.items()),
    ]


def _star(result: ComparedResults) -> str:
    """Say what a star means, also to readers who do not know the word."""
    alpha = result.study.analysis.alpha
    which = "such tables has any star" if result.is_corrected else "such comparisons has one"
    return f"* significant at {alpha:g}: if nothing differed, at most one in {1 / alpha:.3g} {which}."


def _margin_note(result: ComparedResults, compared: Compared) -> list[str]:
    """Explain the verdicts where the study sets a margin."""
    return [
        f"Equal: the true difference is smaller than {margin:g} {unit}, which the study declares too small "
        "to matter; p (equal) is the probability to see so small a difference if the true one were as large "
        "as that. Not known yet: neither a difference nor equality is shown. Seeds more, where given, would "
        "decide in four of five studies if the observed difference were true."
        for margin, unit in {(comparison.margin, comparison.unit) for _, comparison in compared}
        if margin is not None
    ]


def _bare_intervals(result: ComparedResults, compared: Compared) -> list[str]:
    """Warn of intervals without zero whose comparison is open: they are not corrected."""
    labels = [
        label
        for label, comparison in compared
        if comparison.ci is not None and comparison.ci[0] * comparison.ci[1] > 0 and comparison.num_seeds > 1
        if comparison.p is not None and result.standing(comparison) == "open" and not comparison.open_because
        if comparison.basis != "exploratory"
    ]
    if not labels:
        return []
    return [
        f"{', '.join(labels)}: undecided although the interval excludes zero. An interval is that of one "
        "comparison; p (Holm) allows for all questions, of which some look different by chance."
    ]


def _equal_within(result: ComparedResults, compared: Compared) -> list[str]:
    """Say of undecided cells within which margin they are equal: good news where it is small."""
    margins = [
        f"{label} {comparison.equal_within:g}"
        for label, comparison in compared
        if comparison.margin is None and comparison.equal_within is not None and not comparison.is_identical
        if result.standing(comparison) == "open" and comparison.basis != "exploratory"
    ]
    if not margins:
        return []
    unit = result.system.metrics[compared[0][1].metric].unit
    return [
        f"Undecided, but equal within ({unit}): {'; '.join(margins)}. A larger difference is unlikely: these "
        "are the farther ends of the intervals, not corrected for their number."
    ]


def _family(compared: Compared) -> list[str]:
    """Say how much of the family has been tested, unless all of it has."""
    sizes = {comparison.family for _, comparison in compared if comparison.family[1] < comparison.family[0]}
    return [
        f"p (Holm) is corrected over the declared family of {count(size, 'question')}, {tested} tested; the "
        "others count as p = 1."
        for size, tested in sizes
    ]


def scopes(compared: Compared) -> list[str]:
    """State what the intervals cover, for all at once if it is the same."""
    labels_of = grouped(
        (_scope(comparison), label)
        for label, comparison in compared
        if comparison.scope.startswith("seeds") and not comparison.is_exact
    )
    if len(labels_of) == 1 and all(comparison.scope != "segments" for _, comparison in compared):
        return [f"Intervals cover variation over {scope}." for scope in labels_of]
    return [
        f"{', '.join(labels)}: the interval covers variation over {scope}."
        for scope, labels in labels_of.items()
    ]


_FEW_LEVELS = 2
_WORDS = {"better": "better", "worse": "worse", "equal": "equal within the margin", "open": "undecided"}


def _scope(comparison: Comparison) -> str:
    once = ", ".join(comparison.trained_once)
    return comparison.scope + (f"; not covered: {once}, trained once" if once else "")


def column_decimals(result: ComparedResults, metric: str) -> int:
    """Choose the decimals of a metric by the means of all cells."""
    return num_decimals(cell.mean(metric) for cell in result.cells)


def mean_and_std(cell: CellResult, metric: str, decimals: int) -> str:
    """Format mean ± standard deviation over seeds of a metric."""
    mean, std = cell.mean(metric), cell.std(metric)
    return number(mean, decimals) + (f" ± {number(std, decimals)}" if std is not None else "")


def comparison_table(result: ComparedResults, metric: str, beside: Sequence[str] = ()) -> Table:
    """Tabulate the difference of every cell from the baseline, the baseline first.

    Args:
        result: The result.
        metric: The metric that is compared.
        beside: Further metrics, whose means and deviations stand before it.
    """
    shown = [*beside, metric]
    header = ["cell", "seeds", *shown, *_comparison_header(result, metric)]
    decimals_of = {name: column_decimals(result, name) for name in shown}
    decimals = decimals_of[metric]
    rows: list[Row] = []
    compared: list[tuple[str, Comparison]] = []
    for cell in result.cells:
        row: Row = [cell_entry(cell), str(len(cell.measured(metric)))]
        row += [mean_and_std(cell, name, places) for name, places in decimals_of.items()]
        if cell is result.baseline or metric not in result.metrics:
            rows.append([*row, *[NOTHING] * (len(header) - len(row))])
            continue
        comparison = result.compare(cell.cell, metric=metric)
        rows.append([*row, *_comparison_entries(result, comparison, decimals)])
        compared.append((cell.cell.label, comparison))
    return make_table(header, rows, notes=[*comparison_notes(result, compared), *_state_notes(result)])


def effects_table(result: ComparedResults, metric: str) -> Table | None:
    """Tabulate main effects and interactions; None where the design crosses no factors."""
    rows = [
        (
            effect.contrast.label,
            (effect.contrast.label, "interaction" if effect.is_interaction else "on average"),
            effect.comparison,
        )
        for effect in result.effects(metric)
    ]
    return _differences_table(result, metric, ("effect", "kind"), rows)


def gains_table(result: ComparedResults, metric: str) -> Table | None:
    """Tabulate the gains at each level of ``analysis.gains_over``; None where the study names no factor."""
    rows = [
        (f"{curve.label} at {level}", (curve.label, level), comparison)
        for curve in result.gains(metric)
        for level, comparison in curve.gains
    ]
    return _differences_table(result, metric, ("gain of", f"at {result.study.analysis.gains_over}"), rows)


def metrics_table(result: ComparedResults, metrics: Sequence[str]) -> Table:
    """Tabulate mean ± standard deviation over seeds of several metrics, one row per cell."""
    decimals = {name: column_decimals(result, name) for name in metrics}
    rows = [
        [cell_entry(cell), *(mean_and_std(cell, name, decimals[name]) for name in metrics)]
        for cell in result.cells
    ]
    return make_table(["cell", *metrics], rows)


def length_table(result: ComparedResults, metrics: Sequence[str]) -> Table:
    """Tabulate sequence lengths, one row per cell.

    A length has a second column, its change against the baseline; a share of saved tokens has one column.
    """
    shares = {name for name in metrics if result.metrics[name].unit.startswith("share")}
    header = ["cell"]
    columns: list[Row] = [[cell_entry(cell) for cell in result.cells]]
    for name in metrics:
        means = [cell.mean(name) for cell in result.cells]
        header.append(name)
        if name in shares:
            columns.append([_percent(mean) for mean in means])
            continue
        header.append("against baseline")
        base, *others = means
        changes = [mean / base - 1 if mean is not None and base else None for mean in others]
        columns.append([number(mean, 2) for mean in means])
        columns.append([_percent(change, is_signed=True) for change in (None, *changes)])
    return make_table(header, zip(*columns, strict=True))


def claims_table(result: ComparedResults) -> Table:
    """Tabulate the claims with our verdicts and, where they are comparable, the published figures."""
    header = ("claim", "source", "verdict", "because", "ours", "published")
    rows = [
        [
            *(claim.claim.text, claim.claim.source, Entry(claim.text, claim.verdict), claim.explanation),
            *_claim_figures(claim),
        ]
        for claim in result.claims
    ]
    reasons = grouped(
        (claim.why_not_comparable, claim.claim.text)
        for claim in result.claims
        if claim.why_not_comparable and claim.claim.figures
    )
    notes = [f"Published figures not shown for {'; '.join(texts)}: {why}." for why, texts in reasons.items()]
    return make_table(header, rows, num_text=len(header), notes=notes)


def stability_table(result: ComparedResults) -> Table | None:
    """Tabulate lost and diverged seeds, and means robust to them; None before a seed has finished."""
    decimals = num_decimals(cell.mean for cell in result.stabilities)
    rows = [
        [
            cell.label,
            str(cell.num_seeds),
            *(_share(seeds, cell.num_seeds) for seeds in (cell.lost, cell.diverged)),
            *(number(value, decimals) for value in (cell.mean, cell.median, cell.interquartile_mean)),
        ]
        for cell in result.stabilities
    ]
    header = ["cell", "seeds ended", "lost", "diverged", "mean", "median", "interquartile mean"]
    return make_table(header, rows) if rows else None


def _share(seeds: Sequence[int], among: int) -> str:
    """Format some of the seeds: share and names."""
    if not seeds:
        return "0 %"
    return f"{100 * len(seeds) / among:.0f} % (seed {', '.join(map(str, seeds))})"


def looks_table(result: ComparedResults) -> Table:
    """Tabulate how many seeds each cell got by the planned looks, and why no more."""
    rows = [[label, str(stop.num_seeds), stop.reason or NOTHING] for label, stop in result.stops.items()]
    return make_table(["cell", "seeds", "no more because"], rows, num_text=3)


def sensitivity_table(result: ComparedResults, max_lines: float = MANY_LINES) -> Table | None:
    """Tabulate by cell and choice which alternatives change the verdict; None without alternatives."""
    sensitivity = sensitivities(result, max_lines)
    if not sensitivity.rows and not sensitivity.without_seeds:
        return None
    rows: list[Row] = []
    for row in sensitivity.rows:
        changes = "; ".join(f"{_WORDS[other]} {name}" for name, other in row.changes.items())
        stands = f"{len(row.others) - len(row.changes)} of {len(row.others)}"
        verdict = Entry(_WORDS[row.standing], row.standing)
        rows.append([row.label, verdict, row.choice, stands, changes or NOTHING])
    rows += [_without_seeds(result, span) for span in sensitivity.without_seeds]
    rows = _named_once(rows)
    alternatives = {row.choice: ", ".join(row.others) for row in sensitivity.rows}
    notes = [f"{choice}: {names}." for choice, names in alternatives.items()]
    header = ["cell", "verdict", "choice", "stands in", "otherwise"]
    return make_table(header, rows, num_text=5, notes=[*notes, *sensitivity.missing])


def _named_once(rows: Sequence[Row]) -> list[Row]:
    """Order rows by cell, and leave out cell and verdict where they are those of the row before."""
    labels = list(dict.fromkeys(str(row[0]) for row in rows))
    ordered = sorted(rows, key=lambda row: labels.index(str(row[0])))
    return [
        ["", "", *row[2:]] if before is not None and before[:2] == row[:2] else row
        for before, row in zip([None, *ordered], ordered, strict=False)
    ]


def _without_seeds(result: ComparedResults, span: WithoutSeeds) -> Row:
    """Say in a row whether the difference keeps its sign without each seed, and how far it moves."""
    kind = result.standing(result.compare(span.label))
    decimals = column_decimals(result, result.main_metric)
    low, high = (number(end, decimals, is_signed=True) for end in (span.low, span.high))
    sign = "same sign" if span.has_one_sign else "no difference" if span.low == span.high else "sign changes"
    return [span.label, Entry(_WORDS[kind], kind), "seeds", sign, f"{low} to {high} without one seed"]


def trials_table(result: ComparedResults) -> Table:
    """Tabulate every trial with its state, main metric, time and the cache decisions of its stages."""
    objective = result.study.objective.metric
    shown = list(dict.fromkeys([result.main_metric, objective]))
    header = ["cell", "seed", "kind", "state", "stages", *shown, "seconds", "trial"]
    rows = [_trial_row(trial, shown) for trial in result.trials]
    return make_table(header, rows, num_text=5)


def cell_name(cell: CellResult) -> str:
    """Name a cell; the baseline by its levels, too, when these are few."""
    levels = [f"{name}={level_text(level)}" for name, level in cell.cell.levels.items()]
    if not cell.cell.is_baseline or not levels or len(levels) > _FEW_LEVELS:
        return cell.cell.label
    return f"{cell.cell.label} ({', '.join(levels)})"


def cell_entry(cell: CellResult) -> Entry:
    """Name a cell with its state unless it has finished, and why not."""
    mark = "" if cell.state == "finished" else f" ({cell.state})"
    return Entry(cell_name(cell) + mark, hint="; ".join(cell.reasons))


def _differences_table(
    result: ComparedResults,
    metric: str,
    titles: tuple[str, str],
    differences: Sequence[tuple[str, tuple[str, str], Comparison]],
) -> Table | None:
    """Tabulate differences, each by its name in the notes, its two words and itself; None without any."""
    if not differences:
        return None
    decimals = column_decimals(result, metric)
    rows: list[Row] = [
        [*words, str(comparison.num_seeds), *_comparison_entries(result, comparison, decimals)]
        for _, words, comparison in differences
    ]
    header = [*titles, "seeds", *_comparison_header(result, metric)]
    notes = comparison_notes(result, [(name, comparison) for name, _, comparison in differences])
    return make_table(header, rows, num_text=2, notes=notes)


def _comparison_header(result: ComparedResults, metric: str) -> list[str]:
    percent = f"{100 * (1 - result.study.analysis.alpha):g} %"
    corrected = ["p (Holm)"] if result.is_corrected else []
    verdict, equal = (["verdict"], ["p (equal)"]) if result.margin(metric) is not None else ([], [])
    tests = ["difference", f"{percent} interval", "p", *corrected, *equal]
    return [*verdict, *tests, "detectable", "seeds needed"]


def _comparison_entries(result: ComparedResults, comparison: Comparison, decimals: int) -> Row:
    kind = result.standing(comparison)
    star = f"{NO_BREAK}*" if kind in ("better", "worse") else ""
    dagger = "†" if comparison.scope == "segments" else ""
    hint = f"variation over {comparison.scope}; over segments alone: p = {probability(comparison.p_segments)}"
    difference = number(comparison.difference, decimals, is_signed=True)
    has_margin = result.margin(comparison.metric) is not None
    entries: Row = [Entry(comparison.verdict, kind)] if has_margin else []
    entries += [Entry(difference, kind), interval(comparison.ci, decimals) + dagger]
    entries.append(
        Entry(probability(comparison.p) + dagger + ("" if result.is_corrected else star), "", hint)
    )
    if result.is_corrected:
        entries.append(Entry(probability(comparison.p_holm) + star, kind))
    if has_margin:
        entries.append(_equal_entry(result, comparison))
    return [*entries, *_power_entries(comparison, decimals)]


def _equal_entry(result: ComparedResults, comparison: Comparison) -> Entry:
    """Show the p-value of a difference of at least the margin, corrected where the study corrects."""
    star = f"{NO_BREAK}*" if comparison.is_within_margin else ""
    shown = (
        comparison.p_equal_holm if result.is_corrected or comparison.basis is not None else comparison.p_equal
    )
    return Entry(probability(shown) + star, "", f"not corrected: p = {probability(comparison.p_equal)}")


def _power_entries(comparison: Comparison, decimals: int) -> Row:
    if comparison.smallest_detectable is None or comparison.detectable_ci is None:
        return [NOTHING, NOTHING]
    detectable = number(comparison.smallest_detectable, decimals)
    if comparison.num_seeds < FEW_SEEDS:
        low, high = (number(end, decimals) for end in comparison.detectable_ci)
        detectable = f"{low}{NO_BREAK}to{NO_BREAK}{high}"
    needed = comparison.seeds_needed
    return [detectable, NOTHING if needed is None else str(needed)]


def _state_notes(result: ComparedResults) -> list[str]:
    return [f"{cell.cell.label}: {reason}" for cell in result.cells for reason in cell.reasons]


def _claim_figures(claim: ClaimResult) -> tuple[str, str]:
    """Format our means with their difference, and the published figures with theirs."""
    decimals = num_decimals([*claim.values, *claim.figures])
    comparison = claim.comparison
    measured = _against(claim.values, decimals)
    if comparison.difference is not None:
        ends = f" {interval(comparison.ci, decimals)}" if comparison.ci is not None else ""
        measured += f" ({number(comparison.difference, decimals, is_signed=True)}{ends})"
    published = _against(claim.figures, decimals) if claim.figures else NOTHING
    if len(claim.figures) > 1:
        published += f" ({number(gain(claim.figures), decimals, is_signed=True)})"
    return measured, published


def _against(values: Sequence[float | None], decimals: int) -> str:
    """Format the values of one, two or four cells; gains stand pair by pair."""
    texts = [number(value, decimals) for value in values]
    pairs = [" against ".join(texts[start : start + 2]) for start in range(0, len(texts), 2)]
    return "; ".join(pairs)


def _percent(share: float | None, *, is_signed: bool = False) -> str:
    if share is None:
        return NOTHING
    return f"{number(100 * share, 1, is_signed=is_signed)} %"


def _trial_row(trial: TrialResult, metrics: Sequence[str]) -> Row:
    record = trial.record
    stages = [] if record is None else record.stages
    decisions = ", ".join(f"{stage['name']}: {stage['decision']}" for stage in stages)
    reasons = "\n".join(f"{stage['name']}: {stage.get('reason', '')}" for stage in stages)
    kind = trial.kind if trial.number is None else f"search {trial.number}"
    values = [trial.metrics.get(name) for name in metrics]
    took_s = None if record is None else record.ended_at - record.started_at
    return [
        trial.cell.label,
        str(trial.seed),
        kind,
        Entry(trial.state, trial.state, trial.reason),
        Entry(decisions or NOTHING, "", reasons),
        *(number(value, 4 if value is None else num_decimals([value])) for value in values),
        number(took_s, 1),
        Entry(trial.fingerprint[:12] or NOTHING, "", trial.fingerprint),
    ]
