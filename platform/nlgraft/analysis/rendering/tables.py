"""The tables of a report, as text entries for Markdown, LaTeX, HTML and terminals alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from statistics import fmean, stdev

from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.estimates.agreement import Agreement
from nlgraft.analysis.estimates.comparison import ONE_SEED, Comparison
from nlgraft.analysis.policy.hypotheses import SystemScores
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.policy.rules import ALPHA
from nlgraft.analysis.rendering.typesetting import (
    NO_BREAK,
    NOTHING,
    Entry,
    Row,
    Table,
    interval,
    make_table,
    num_decimals,
    number,
    probability,
    rounded,
    sentences,
)
from nlgraft.basics.wording import duration, grouped
from nlgraft.study.data.claim import gain
from nlgraft.study.data.design import level_text

FEW_SEEDS = 5
"""Below this many seeds the variance, and with it the detectable difference, is given as an interval."""

Compared = Sequence[tuple[str, Comparison]]
"""Comparisons of one table, on one metric, with the names of their rows."""


def comparison_notes(
    compared: Compared,
    alpha: float,
    *,
    is_of_study: bool = True,
) -> list[str]:
    """Explain the marks in a table of comparisons, then list the comparisons' own notes."""
    comparisons = [comparison for _, comparison in compared]
    notes = grouped(
        (note, label)
        for label, comparison in compared
        for note in (*comparison.notes, comparison.noise)
        if note not in ("", ONE_SEED)
    )
    facts = {
        "compared": compared,
        "comparisons": comparisons,
        "undecided": [
            (label, comparison)
            for label, comparison in compared
            if comparison.standing == "open" and comparison.basis != "exploratory"
        ],
        "margins": {(each.margin, each.unit) for each in comparisons if each.margin is not None},
        "families": {comparison.family for comparison in comparisons},
        "scopes": scopes(compared),
        "notes": notes,
        "alpha": alpha,
        "is_of_study": is_of_study,
        "few_seeds": FEW_SEEDS,
        "one_seed": ONE_SEED,
    }
    return sentences("notes.txt.j2", facts)


def scopes(compared: Compared) -> list[str]:
    """State what the intervals cover, for all at once if it is the same."""
    named = [
        (each.scope, ", ".join(each.trained_once), label)
        for label, each in compared
        if each.scope.startswith("seeds") and not each.is_exact
    ]
    labels_of = grouped(
        (scope + (f"; not covered: {once}, trained once" if once else ""), label)
        for scope, once, label in named
    )
    if len(labels_of) == 1 and all(comparison.scope != "segments" for _, comparison in compared):
        return [f"Intervals cover variation over {scope}." for scope in labels_of]
    return [
        f"{', '.join(labels)}: the interval covers variation over {scope}."
        for scope, labels in labels_of.items()
    ]


def covered(result: RecordedResults) -> str:
    """Say in one or more sentences what the intervals on the main metric cover."""
    main = result.main_metric
    if main not in result.metrics:
        return ""
    compared = [(each.a, each) for each in result.against_baseline(main) if each.ci is not None]
    texts = [f"Intervals have {confidence(result.alpha)} confidence.", *scopes(compared)]
    if any(comparison.scope == "segments" for _, comparison in compared):
        texts.append(f"† {ONE_SEED}.")
    return " ".join(texts) if compared else ""


def confidence(alpha: float) -> str:
    """Format the confidence of the intervals."""
    return f"{100 * (1 - alpha):g} %"


def caption(result: RecordedResults, text: str) -> str:
    """Begin a caption with the study's name, since a paper may show several, and end it with its data."""
    return f"{result.study.variant}: {text}{' The data is constructed.' if result.is_constructed else ''}"


def seeds(result: RecordedResults) -> str:
    """Say of how many seeds the means are: ``n = 3 seeds``, or ``n = 3 to 10 seeds``."""
    numbers = numbers_of_seeds(result)
    return f"n = {numbers} {'seed' if numbers == '1' else 'seeds'}"


def numbers_of_seeds(result: RecordedResults) -> str:
    """Say how many seeds of the cells have finished: ``3``, or ``3 to 10``."""
    numbers = {len(cell.measured(result.main_metric)) for cell in result.cells}
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


def signatures(result: RecordedResults) -> dict[str, list[str]]:
    """List by metric the signatures with which it was scored."""
    signed = {}
    for name in result.metrics:
        scores = [trial for cell in result.cells for trial in cell.measured(name).values()]
        if distinct := {trial.signature for trial in scores if trial.signature}:
            signed[name] = sorted(distinct)
    return signed


def column_decimals(result: RecordedResults, metric: str) -> int:
    """Choose the decimals of a metric by the means of all cells."""
    return num_decimals(cell.mean(metric) for cell in result.cells)


def mean_and_std(values: Collection[float], decimals: int) -> str:
    """Format mean ± standard deviation of a metric over seeds."""
    if not values:
        return NOTHING
    spread = f" ± {number(stdev(values), decimals)}" if len(values) > 1 else ""
    return number(fmean(values), decimals) + spread


def comparison_table(result: RecordedResults, metric: str) -> Table:
    """Tabulate the difference of every cell from the baseline on a metric, the baseline first."""
    decimals = column_decimals(result, metric)
    rows, compared = [], []
    for cell in result.cells:
        row: Row = {"cell": cell_entry(cell), "seeds": len(cell.measured(metric))}
        row[metric] = mean_and_std(cell.values(metric).values(), decimals)
        if cell is not result.baseline and metric in result.metrics:
            comparison = result.compare(cell.cell, metric=metric)
            compared.append((cell.label, comparison))
            row |= _comparison_row(comparison, decimals, result.alpha)
        rows.append(row)
    reasons = [f"{cell.label}: {reason}" for cell in result.cells for reason in cell.reasons]
    notes = comparison_notes(compared, result.alpha)
    floor = result.trivial if metric == result.main_metric else None
    floors = [] if floor is None else [f"For comparison: {floor.output} has {number(floor.value, decimals)}."]
    return make_table(rows, notes=[*floors, *notes, *reasons])


def systems_table(systems: Sequence[SystemScores], notes: Sequence[str]) -> Table:
    """Tabulate the differences of systems that were not trained here from the first of them.

    Args:
        systems: Their scores, metric by metric.
        notes: How the scores were paired and computed.
    """
    rows, compared = [], []
    for metric, group in groupby(systems, key=lambda system: system.metric):
        scores = list(group)
        decimals = num_decimals(fmean(system.values) for system in scores)
        for system in scores:
            row: Row = {
                "system": system.system,
                "metric": metric,
                "verdict": "the others are compared with it",
                "seeds": len(system.values),
                "score": mean_and_std(system.values, decimals),
            }
            if (comparison := system.comparison) is not None:
                compared.append((system.system, comparison))
                row["verdict"] = Entry(comparison.verdict, comparison.standing or "")
                row |= _comparison_row(comparison, decimals, ALPHA)
            rows.append(row)
    marks = comparison_notes(compared, ALPHA, is_of_study=False)
    return make_table(rows, num_text=3, notes=[*notes, *marks])


def agreement_table(agreement: Agreement) -> Table:
    """Tabulate how far scales agree with the largest one, and name the cheapest that is good enough."""
    *_, (largest, largest_s) = agreement.seconds.items()
    rows = [
        {
            "scale": row.scale,
            "by": row.metric,
            "agrees": number(row.share, 2),
            "over seeds": interval(row.ci, 2, is_signed=False),
            "arms": row.num_arms,
            "seeds": " and ".join(map(str, row.num_seeds)),
            "time": duration(agreement.seconds[row.scale]),
            "of the largest": number(agreement.seconds[row.scale] / largest_s, 2) if largest_s else "",
        }
        for row in agreement.rows
    ]
    notes = sentences("agreement.txt.j2", {"agreement": agreement, "largest": largest})
    return make_table(rows, num_text=2, notes=notes)


def effects_table(result: RecordedResults, metric: str) -> Table | None:
    """Tabulate main effects and interactions; None where the design crosses no factors."""
    return _differences_table(
        result,
        [
            (
                effect.contrast.label,
                {
                    "effect": effect.contrast.label,
                    "kind": "interaction" if effect.is_interaction else "on average",
                },
                effect.comparison,
            )
            for effect in result.effects(metric)
        ],
        "On average: against the factor's baseline, averaged over the levels of the others. Interaction: the "
        "change due to two levels together beyond the sum of their separate changes.",
    )


def gains_table(result: RecordedResults, metric: str) -> Table | None:
    """Tabulate the gains at each level of ``analysis.gains_over``; None where the study names no factor."""
    over = f"at {result.study.analysis.gains_over}"
    return _differences_table(
        result,
        [
            (f"{curve.label} at {level}", {"gain of": curve.label, over: level}, comparison)
            for curve in result.gains(metric)
            for level, comparison in curve.gains
        ],
        f"Gain: a level against its factor's baseline, both {over} as given.",
    )


def _differences_table(
    result: RecordedResults,
    differences: Sequence[tuple[str, Row, Comparison]],
    note: str,
) -> Table | None:
    """Tabulate differences, each by its name in the notes, its two words and itself; None without any."""
    if not differences:
        return None
    decimals = column_decimals(result, differences[0][2].metric)
    alpha = result.alpha
    rows = [
        words | {"seeds": comparison.num_seeds} | _comparison_row(comparison, decimals, alpha)
        for _, words, comparison in differences
    ]
    notes = comparison_notes([(name, comparison) for name, _, comparison in differences], alpha)
    return make_table(rows, num_text=2, notes=[note, *notes])


def metrics_table(result: RecordedResults, metrics: Sequence[str]) -> Table:
    """Tabulate mean ± standard deviation over seeds of several metrics, one row per cell."""
    decimals = {name: column_decimals(result, name) for name in metrics}
    return make_table(
        {"cell": cell_entry(cell)}
        | {name: mean_and_std(cell.values(name).values(), decimals[name]) for name in metrics}
        for cell in result.cells
    )


def is_length(metric: str) -> bool:
    """Return True for metrics that have a table of their own."""
    return "length" in metric.rpartition("/")[2]


def compared_metrics(result: RecordedResults) -> list[str]:
    """Choose the metrics beside the main one on which every cell is compared with the baseline."""
    main, metrics = result.main_metric, result.metrics
    split = metrics[main].split if main in metrics else "test"
    return [
        name
        for name, metric in metrics.items()
        if metric.is_derived or (metric.split == split and not metric.is_time)
        if name != main and not is_length(name)
    ]


def length_table(result: RecordedResults) -> Table | None:
    """Tabulate sequence lengths, on test if there are any, with their changes against the baseline."""
    lengths = {name: metric for name, metric in result.metrics.items() if is_length(name)}
    # Of the two splits one is enough: their lengths hardly differ.
    shown = {name: metric for name, metric in lengths.items() if metric.split == "test"} or lengths
    rows = []
    for cell in result.cells:
        row: Row = {"cell": cell_entry(cell)}
        for name, metric in shown.items():
            mean, base = cell.mean(name), result.baseline.mean(name)
            if metric.unit.startswith("share"):
                row[name] = None if mean is None else f"{number(100 * mean, 1)} %"
                continue
            change = ""
            if mean is not None and base and cell is not result.baseline:
                change = f"{NO_BREAK}({number(100 * (mean / base - 1), 1, is_signed=True)} %)"
            row[name] = number(mean, 2) + change
        rows.append(row)
    return make_table(rows, notes=["In brackets: change against the baseline."]) if shown else None


def claims_table(result: RecordedResults) -> Table | None:
    """Tabulate the claims with our verdicts and, where they are comparable, the published figures."""
    rows = []
    for claim in result.claims:
        decimals = num_decimals([*claim.values, *claim.figures])
        measured, published = _against(claim.values, decimals), _against(claim.figures, decimals)
        if claim.comparison.difference is not None:
            ends = f" {interval(claim.comparison.ci, decimals)}" if claim.comparison.ci is not None else ""
            measured += f" ({number(claim.comparison.difference, decimals, is_signed=True)}{ends})"
        if len(claim.figures) > 1:
            published += f" ({number(gain(claim.figures), decimals, is_signed=True)})"
        rows.append(
            {
                "claim": claim.claim.text,
                "source": claim.claim.source,
                "verdict": Entry(claim.text, claim.verdict),
                "because": claim.explanation,
                "ours": measured,
                "published": published or None,
            }
        )
    reasons = grouped(
        (claim.why_not_comparable, claim.claim.text)
        for claim in result.claims
        if claim.why_not_comparable and claim.claim.figures
    )
    notes = [f"Published figures not shown for {'; '.join(texts)}: {why}." for why, texts in reasons.items()]
    return make_table(rows, num_text=6, notes=notes) if rows else None


def stability_table(result: RecordedResults) -> Table | None:
    """Tabulate lost and diverged seeds, and means robust to them; None before a seed has finished."""
    decimals = num_decimals(cell.mean for cell in result.stabilities)
    rows = [
        {
            "cell": cell.label,
            "seeds ended": cell.num_seeds,
            "lost": _share(cell.lost, cell.num_seeds),
            "diverged": _share(cell.diverged, cell.num_seeds),
            "mean": number(cell.mean, decimals),
            "median": number(cell.median, decimals),
            "interquartile mean": number(cell.interquartile_mean, decimals),
        }
        for cell in result.stabilities
    ]
    return make_table(rows) if rows else None


def _share(seeds: Sequence[int], among: int) -> str:
    """Format some of the seeds: share and names."""
    if not seeds:
        return "0 %"
    return f"{100 * len(seeds) / among:.0f} % (seed {', '.join(map(str, seeds))})"


def looks_table(result: RecordedResults) -> Table | None:
    """Tabulate how many seeds each cell got by the planned looks, and why no more; None without looks."""
    rows = [
        {"cell": label, "seeds": stop.num_seeds, "no more because": stop.stopped_because or None}
        for label, stop in result.stops.items()
    ]
    return make_table(rows, num_text=3) if rows else None


def trials_table(result: RecordedResults) -> Table:
    """Tabulate every trial with its state, main metric, time and the cache decisions of its stages."""
    # Often one and the same metric.
    shown = dict.fromkeys([result.main_metric, result.study.objective.metric])
    rows = []
    for trial in result.trials:
        decisions = ", ".join(f"{stage['name']}: {stage['decision']}" for stage in trial.stages)
        reasons = "\n".join(f"{stage['name']}: {stage.get('reason', '')}" for stage in trial.stages)
        row: Row = {
            "cell": trial.cell.label,
            "seed": trial.seed,
            "kind": trial.kind if trial.number is None else f"search {trial.number}",
            "state": Entry(trial.state, trial.state, trial.reason),
            "stages": Entry(decisions or NOTHING, "", reasons),
        }
        for name in shown:
            row[name] = rounded(trial.metrics.get(name))
        row["seconds"] = number(trial.record and trial.duration_s, 1)
        row["trial"] = Entry(trial.fingerprint[:12] or NOTHING, "", trial.fingerprint)
        rows.append(row)
    return make_table(rows, num_text=5)


_FEW_LEVELS = 2


def cell_name(cell: CellResult) -> str:
    """Name a cell; the baseline by its levels, too, when these are few."""
    levels = [f"{name}={level_text(level)}" for name, level in cell.cell.levels.items()]
    if not cell.cell.is_baseline or not levels or len(levels) > _FEW_LEVELS:
        return cell.label
    return f"{cell.label} ({', '.join(levels)})"


def cell_entry(cell: CellResult) -> Entry:
    """Name a cell with its state unless it has finished, and why not."""
    mark = "" if cell.state == "finished" else f" ({cell.state})"
    return Entry(cell_name(cell) + mark, hint="; ".join(cell.reasons))


def _comparison_row(comparison: Comparison, decimals: int, alpha: float) -> Row:
    kind = comparison.standing or ""
    star = f"{NO_BREAK}*" if kind in ("better", "worse") else ""
    # One seed: what looks like a result says nothing of another training.
    dagger = "†" if comparison.scope == "segments" else ""
    hint = f"variation over {comparison.scope}; over segments alone: p = {probability(comparison.p_segments)}"
    row: Row = {
        "difference": Entry(number(comparison.difference, decimals, is_signed=True), kind),
        f"{confidence(alpha)} interval": interval(comparison.ci, decimals) + dagger,
        "p": Entry(probability(comparison.p) + dagger, "", hint),
        "p (Holm)": Entry(probability(comparison.p_holm) + star, kind),
    }
    if comparison.margin is not None:
        star = f"{NO_BREAK}*" if comparison.is_within_margin else ""
        hint = f"not corrected: p = {probability(comparison.p_equal)}"
        equal = Entry(probability(comparison.p_equal_holm) + star, "", hint)
        row = {"verdict": Entry(comparison.verdict, kind)} | row | {"p (equal)": equal}
    detectable = number(comparison.smallest_detectable, decimals)
    if comparison.detectable_ci is not None and comparison.num_seeds < FEW_SEEDS:
        low, high = (number(end, decimals) for end in comparison.detectable_ci)
        detectable = f"{low}{NO_BREAK}to{NO_BREAK}{high}"
    # A column that no row fills is left out.
    needed = comparison.seeds_needed
    return row | {"detectable": detectable} | ({} if needed is None else {"seeds needed": needed})


def _against(values: Sequence[float | None], decimals: int) -> str:
    """Format the values of one, two or four cells; gains stand pair by pair."""
    texts = [number(value, decimals) for value in values]
    pairs = [" against ".join(texts[start : start + 2]) for start in range(0, len(texts), 2)]
    return "; ".join(pairs)
