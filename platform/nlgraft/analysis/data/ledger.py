"""The ledger: the questions asked of a store and their answers, one entry for each analysis that was shown.

An entry is about one set of test segments; a study that is scored on two sets leaves two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nlgraft.pipeline.journal import Journal
from nlgraft.pipeline.store import ArtifactStore

_SKETCH = 32
_DIGITS = 12
_SHARED = 2

EFFECTS = "effects on "
"""Beginning of the name of a family of effects; their metric follows."""

Basis = Literal["declared", "afterthought", "described"]


@dataclass(frozen=True, kw_only=True)
class Segments:
    """A set of test segments.

    Attributes:
        num: Number of segments.
        digest: SHA-256 over them, in order.
        sketch: The smallest hashes of single segments, 12 hexadecimal digits each, by which sets are found to
            overlap (Broder 1997).
    """

    num: int
    digest: str
    sketch: str

    @classmethod
    def of(cls, segments: Sequence[str]) -> Segments:
        """Describe segments, each given as the text of everything that its score depends on."""
        whole = hashlib.sha256()
        hashes = set()
        for text in segments:
            digest = hashlib.sha256(text.encode()).hexdigest()
            whole.update(digest.encode())
            hashes.add(digest[:_DIGITS])
        return cls(num=len(segments), digest=whole.hexdigest(), sketch="".join(sorted(hashes)[:_SKETCH]))

    def overlaps(self, other: Segments) -> bool:
        """True for the same set, and for sets that share more than a few stray segments.

        Of two sets that share a fraction s of their union, 32 s of the smallest hashes are expected to be
        common to both.
        """
        return self.digest == other.digest or len(self._hashes & other._hashes) >= _SHARED

    @property
    def _hashes(self) -> set[str]:
        return {self.sketch[at : at + _DIGITS] for at in range(0, len(self.sketch), _DIGITS)}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question of an analysis, and its answer.

    Attributes:
        metric: Name of the metric.
        cells: Digests of the configs without seeds: two cells, one against a published figure, or four.
        labels: The cells as the report names them.
        null: Difference under the null hypothesis; the published figure that one cell is compared with.
        margin: Difference from a published figure that does not matter.
        second_metric: The metric of the second cell where it is another.
        is_effect: True for the effect of a factor or an interaction, which averages over its cells.
        signature: How the metric is computed; None without a signature.
        family: Name of the declared family that decides; None if the question belongs to none.
        seeds: Seeds that finished in all cells.
        left_out: Seeds of its cells that were seen before and that its test leaves out.
        is_complete: True if ``p`` is what the plan asks for: with fixed seeds, all of them finished in all
            cells; with planned looks, all seeds of the looks taken; at any time, no seed is left out.
        is_judged: False if no verdict may rest on it, whatever its p-value.
        is_certain: True for an exact difference, whose sign needs no test.
        difference: The observed difference; None before a seed finished.
        p: p-value by the study's own test and plan, before any family.
        p_anytime: p-value that holds at every number of seeds; None where there is none.
        p_ledger: ``p`` or ``p_anytime`` after correction, to be compared with alpha; None where not judged.
        equal_margin: Difference that the study declares too small to matter; None without one.
        p_equal: p-value of a difference of at least that, by the study's own test and plan.
        p_equal_anytime: The same, for every number of seeds and every margin.
        p_equal_ledger: One of the two after correction; None where not judged.
        basis: What the answer rests on.
        verdict: The verdict shown.
    """

    metric: str
    cells: tuple[str, ...]
    labels: tuple[str, ...] = ()
    null: float = 0.0
    margin: float = 0.0
    second_metric: str | None = None
    is_effect: bool = False
    signature: str | None = None
    family: str | None = None
    seeds: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()
    is_complete: bool = True
    is_judged: bool = True
    is_certain: bool = False
    difference: float | None = None
    p: float | None = None
    p_anytime: float | None = None
    p_ledger: float | None = None
    basis: Basis = "described"
    equal_margin: float | None = None
    p_equal: float | None = None
    p_equal_anytime: float | None = None
    p_equal_ledger: float | None = None
    verdict: Literal["significant", "equal", "open"] = "open"

    @property
    def hypothesis(self) -> tuple[object, ...]:
        """What is asked, which two cells share from either side."""
        is_symmetric = len(self.cells) == 2 and self.null == 0 and self.second_metric is None
        cells = tuple(sorted(self.cells)) if is_symmetric else self.cells
        # An effect may have the cells of a claim on gains, or of one comparison, and is another hypothesis.
        is_effect = self.is_effect or (self.family or "").startswith(EFFECTS)  # entries of 0.1 have no flag
        return (self.metric, self.second_metric, self.null, self.margin, cells, is_effect)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An analysis that was shown.

    Attributes:
        time: When, UTC, ISO 8601.
        study: Name of the study.
        variant: Its name with overrides.
        system: Its system.
        segments: The test segments.
        baseline: Digest of the baseline.
        cells: Digests of all cells of the study, in its order.
        metrics: All metrics of the system that are scored on the segments, the one that decides first.
        plan: Seeds or looks, and the test: what determines a p-value apart from the question.
        alpha: Level that the study declares.
        asked: The questions.
        registration: Short digest of the registration that holds for it; empty without one.
        deviations: Deviations from it, a line each.
        alone: Seeds whose scores were shown of a cell and of no comparison with it, by the cell's digest.
    """

    time: str
    study: str
    variant: str
    system: str
    segments: Segments
    baseline: str
    cells: tuple[str, ...]
    metrics: tuple[str, ...]
    plan: str
    alpha: float
    asked: tuple[Asked, ...]
    alone: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Not compared: an analysis that is shown again after a registration is the same one.
    registration: str = field(default="", compare=False)
    deviations: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class History:
    """The entries on one set of test segments.

    Attributes:
        entries: By number, ascending.
        last: The highest number of the whole ledger.
        problems: Entries that could not be read, as sentences.
    """

    entries: dict[int, Entry]
    last: int = 0
    problems: tuple[str, ...] = ()


def scored_lines(sources: Sequence[str], references: Sequence[str]) -> list[str]:
    """Put together what each segment is scored on: source and reference, or the reference alone."""
    if len(sources) != len(references):
        return list(references)
    return ["\t".join(pair) for pair in zip(sources, references, strict=True)]


def segments_of(lines: Sequence[str], split: str, data: Mapping[str, Any]) -> Segments:
    """Describe the lines of a split or, where they are not stored, the settings of the data."""
    settings = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return Segments.of(lines or [f"{split} {settings}"])


def open_ledger(store: ArtifactStore) -> Journal[Entry]:
    """Open the ledger of a store."""
    return store.journal("ledger", Entry)


def history(store: ArtifactStore, segments: Segments) -> History:
    """Read the entries on segments that overlap with these."""
    pages = open_ledger(store).read()
    found = {number: one for number, one in pages.documents.items() if one.segments.overlaps(segments)}
    return History(found, pages.last, pages.problems)
