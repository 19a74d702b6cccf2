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
    if any(result.standing(found) != "open" for _, found in compared):
        marks.append(_star(result))
    marks += _margin_note(result, compared)
    if any(found.scope == "segments" for _, found in compared):
        marks.append(f"† {ONE_SEED}; nothing is decided.")
    has_margin = any(found.margin is not None for _, found in compared)
    if any(found.smallest_detectable is not None for _, found in compared):
        marks.append(
            "Detectable: the true difference that so many seeds find in four of five such studies; below "
            f"{FEW_SEEDS} seeds only a range is known. Seeds needed: that many, in a study of its own, find "
            f"the observed one{', or that it is within the margin' if has_margin else ''}."
        )
    notes: dict[str, list[str]] = {}
    for label, found in compared:
        for note in found.notes:
            if note != ONE_SEED:
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
    margins = {found.metric: found.margin for _, found in compared if found.margin is not None}
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
        for label, found in compared
        if found.ci is not None and found.ci[0] * found.ci[1] > 0 and found.num_seeds > 1
        if found.p is not None and result.standing(found) == "open" and not found.open_because
        if found.basis != "exploratory"
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
        f"{label} {found.equal_within:g}"
        for label, found in compared
        if found.margin is None and found.equal_within is not None and not found.is_identical
        if result.standing(found) == "open" and found.basis != "exploratory"
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
    sizes = {found.family for _, found in compared if found.family[1] < found.family[0]}
    return [
        f"p (Holm) is corrected over the declared family of {count(size, 'question')}, {tested} tested; the "
        "others count as p = 1."
        for size, tested in sizes
    ]


def scopes(compared: Sequence[tuple[str, Comparison]]) -> list[str]:
    """State what the intervals cover, for all at once if it is the same."""
    scopes: dict[str, list[str]] = {}
    for label, found in compared:
        if found.scope.startswith("seeds") and not found.is_exact:
            once = (
                f"; not covered: {', '.join(found.trained_once)}, trained once" if found.trained_once else ""
            )
            scopes.setdefault(f"over {found.scope}{once}", []).append(label)
    if len(scopes) == 1 and all(found.scope != "segments" for _, found in compared):
        return [f"Intervals cover variation {scope}." for scope in scopes]
    return [
        f"{', '.join(labels)}: the interval covers variation {scope}." for scope, labels in scopes.items()
    ]
