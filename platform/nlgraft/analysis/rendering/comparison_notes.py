"""The sentences below a table of comparisons: its marks, margins, family, and what intervals cover."""

from __future__ import annotations

from collections.abc import Sequence

from nlgraft.analysis.estimates.comparison import ONE_SEED, Comparison
from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.basics.wording import count

FEW_SEEDS = 5
"""Below this many seeds the variance, and with it the detectable difference, is given as an interval."""


def comparison_notes(result: ComparedResults, compared: Sequence[tuple[str, Comparison]]) -> list[str]:
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
    notes: dict[str, list[str]] = {}
    for label, comparison in compared:
        for note in (*comparison.notes, comparison.noise):
            if note not in ("", ONE_SEED):
                notes.setdefault(note, []).append(label)
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


def _margin_note(result: ComparedResults, compared: Sequence[tuple[str, Comparison]]) -> list[str]:
    """Explain the verdicts where the study sets a margin."""
    margins = {
        comparison.metric: comparison.margin for _, comparison in compared if comparison.margin is not None
    }
    return [
        f"Equal: the true difference is smaller than {margin:g} {result.system.metrics[name].unit}, which "
        "the study declares too small to matter; p (equal) is the probability to see so small a difference "
        "if the true one were as large as that. Not known yet: neither a difference nor equality is shown. "
        "Seeds more, where given, would decide in four of five studies if the observed difference were true."
        for name, margin in margins.items()
    ]


def _bare_intervals(result: ComparedResults, compared: Sequence[tuple[str, Comparison]]) -> list[str]:
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


def _equal_within(result: ComparedResults, compared: Sequence[tuple[str, Comparison]]) -> list[str]:
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


def _family(compared: Sequence[tuple[str, Comparison]]) -> list[str]:
    """Say how much of the family has been tested, unless all of it has."""
    sizes = {comparison.family for _, comparison in compared if comparison.family[1] < comparison.family[0]}
    return [
        f"p (Holm) is corrected over the declared family of {count(size, 'question')}, {tested} tested; the "
        "others count as p = 1."
        for size, tested in sizes
    ]


def scopes(compared: Sequence[tuple[str, Comparison]]) -> list[str]:
    """State what the intervals cover, for all at once if it is the same."""
    scopes: dict[str, list[str]] = {}
    for label, comparison in compared:
        if comparison.scope.startswith("seeds") and not comparison.is_exact:
            once = (
                f"; not covered: {', '.join(comparison.trained_once)}, trained once"
                if comparison.trained_once
                else ""
            )
            scopes.setdefault(f"over {comparison.scope}{once}", []).append(label)
    if len(scopes) == 1 and all(comparison.scope != "segments" for _, comparison in compared):
        return [f"Intervals cover variation {scope}." for scope in scopes]
    return [
        f"{', '.join(labels)}: the interval covers variation {scope}." for scope, labels in scopes.items()
    ]
