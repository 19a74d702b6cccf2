"""The ledger: the questions asked of a store and their answers, one entry for each analysis that was shown.

An entry is about one set of test segments; a study that is scored on two sets leaves two.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from nlgraft.pipeline.fingerprint import dotted, fingerprint
from nlgraft.pipeline.record_store import Journal
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study
from nlgraft.study.reading.resolving import resolve_cell, resolve_config

_SKETCH = 512
_DIGITS = 12
_SHARED = 2
_SHARE = 0.1
_ANY_SEED = 0

VERSION = 2
"""Of the rules by which entries are written."""

SCORED_ELSEWHERE = "hypotheses"
"""System of entries about files of hypotheses or scores, which declare no seeds."""
EFFECTS = "effects on "
"""Beginning of the name of a family of effects; their metric follows."""

Basis = Literal["declared", "declared later", "exploratory"]
Hypothesis = tuple[str, str | None, float, tuple[str, ...], bool]


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
    # The digest tells sets apart; a ledger may hold more or fewer hashes of the same segments.
    sketch: str = field(compare=False)

    @classmethod
    def of(cls, segments: Sequence[str]) -> Segments:
        """Describe segments, each given as the text of everything that its score depends on."""
        whole = hashlib.sha256()
        hashes = set()
        for text in segments:
            digest = hashlib.sha256(text.encode()).hexdigest()
            whole.update(digest.encode())
            hashes.add(digest[:_DIGITS])
        return cls(
            num=len(segments),
            digest=whole.hexdigest(),
            sketch="".join(sorted(hashes)[:_SKETCH]),
        )

    def overlaps(self, other: Segments) -> bool:
        """True for the same set, and for sets that share a tenth of the smaller one.

        It is estimated below the hash up to which both sketches are whole, so that a small part of a large
        set is found: 200 of 5,000 segments have some 20 hashes there, all of them the larger set's as well.
        """
        # Sketches of equal sets are equal, but very small sets would share too few hashes below.
        if self.digest == other.digest:
            return True
        # A sketch holds the smallest hashes only: beyond its end nothing is known of a line.
        ends = [max(part._hashes) for part in (self, other) if 0 < len(part._hashes) < part.num]
        first, second = (
            {key for key in part._hashes if not ends or key <= min(ends)} for part in (self, other)
        )
        return len(first & second) >= max(_SHARED, _SHARE * min(len(first), len(second)))

    @property
    def _hashes(self) -> set[str]:
        return {self.sketch[at : at + _DIGITS] for at in range(0, len(self.sketch), _DIGITS)}


@dataclass(frozen=True)
class Plan:
    """When a question is answered.

    Attributes:
        seeds: All seeds that it may get, in the order in which it gets them.
        looks: Ascending numbers of seeds at which it is answered.
    """

    seeds: tuple[int, ...]
    looks: tuple[int, ...]

    def taken(self, seeds: Collection[int]) -> list[int]:
        """List the looks whose seeds are all among these."""
        return [look for look in self.looks if set(self.seeds[:look]) <= set(seeds)]


@dataclass(frozen=True)
class Look:
    """The answer at one look.

    Attributes:
        difference: The observed difference, minus that under the null hypothesis.
        p: Two-sided p-value; None where there is none.
        p_equal: p-value of a difference of at least the margin; None without a margin.
    """

    difference: float
    p: float | None
    p_equal: float | None = None


@dataclass(frozen=True)
class NoisePrior:
    """What earlier studies say about the variance of a paired difference between seeds.

    Attributes:
        df: Degrees of freedom d0 that it counts for.
        variance: Its variance s0^2.
        studies: Names of the studies.
        is_published: True if they are nlgraft's own, and none of the store's is alike.
    """

    df: float
    variance: float
    studies: tuple[str, ...] = ()
    is_published: bool = False


@dataclass(frozen=True, kw_only=True)
class Training:
    """What varies with the seed in a cell.

    Attributes:
        kind: Digest of its system, data but for test lines, stages that are trained, their steps and sizes.
        weights: Digest of the trainings themselves, which cells share that differ in decoding alone.
        stages: Names of the stages that are trained for each seed, sorted.
        num_tokens: Tokens that they are trained on in one seed, in steps times tokens a step; 0 if unknown.
    """

    kind: str
    weights: str
    stages: tuple[str, ...] = ()
    num_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class LedgerQuestion:
    """A question of an analysis, and its answer.

    Attributes:
        metric: Name of the metric.
        cells: Digests of the trials without seeds: of two cells, or four.
        labels: The cells as the report names them.
        null: Difference under the null hypothesis.
        second_metric: The metric of the second cell where it is another.
        is_effect: True for the effect of a factor or an interaction, which averages over its cells.
        signature: How the metric is computed; None without a signature.
        family: Name of the family that the study declares it in; None if in none.
        seeds: Seeds over which it is shown.
        looks: Answers by number of seeds, at the looks whose seeds have all finished in all cells.
        is_judged: False if no verdict may rest on it, whatever its p-value.
        is_certain: True for an exact difference, whose sign needs no test.
        difference: The observed difference; None before a seed finished.
        p: p-value of the comparison alone.
        p_ledger: The same after correction, for looks, too, to be compared with alpha; None where not judged.
        equal_margin: Difference that the study declares too small to matter; None without one.
        p_equal_ledger: p-value of a difference of at least that, corrected; None where not judged.
        basis: What the answer rests on.
        verdict: The verdict shown.
        prior: Noise of earlier studies when the question was first asked; None without any.
    """

    metric: str
    cells: tuple[str, ...]
    labels: tuple[str, ...] = ()
    null: float = 0.0
    second_metric: str | None = None
    is_effect: bool = False
    signature: str | None = None
    family: str | None = None
    seeds: tuple[int, ...] = ()
    looks: Mapping[int, Look] = field(default_factory=dict)
    is_judged: bool = True
    is_certain: bool = False
    difference: float | None = None
    p: float | None = None
    p_ledger: float | None = None
    equal_margin: float | None = None
    p_equal_ledger: float | None = None
    basis: str = "exploratory"
    verdict: Literal["significant", "equal", "open"] = "open"
    prior: NoisePrior | None = None

    @property
    def compared(self) -> tuple[str, tuple[str, ...]]:
        """The metric and the cells, whatever is asked of them."""
        return self.metric, tuple(sorted(self.cells))

    @property
    def hypothesis(self) -> Hypothesis:
        """What is asked, which two cells share from either side."""
        cells = tuple(sorted(self.cells)) if self._is_symmetric else self.cells
        # An effect may have the cells of a claim on gains, or of one comparison, and is another hypothesis.
        return (self.metric, self.second_metric, self.null, cells, self.is_effect)

    @property
    def oriented_looks(self) -> Mapping[int, Look]:
        """The answers at looks from the side of the cell that `hypothesis` names first."""
        if not self._is_symmetric or self.cells[0] < self.cells[1]:
            return self.looks
        return {number: replace(look, difference=-look.difference) for number, look in self.looks.items()}

    @property
    def _is_symmetric(self) -> bool:
        return len(self.cells) == 2 and self.null == 0 and self.second_metric is None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An analysis that was shown.

    Attributes:
        version: Of the rules it was made by; those of version 1 count as the first declaration, and no more.
        time: When, UTC, ISO 8601.
        study: Name of the study.
        variant: Its name with overrides.
        system: Its system.
        segments: The test segments.
        baseline: Digest of the baseline.
        cells: Digests of all cells of the study, in its order.
        metrics: All metrics of the system that are scored on the segments, the one that decides first.
        plan: When the study's own questions are answered.
        alpha: Level that the study declares.
        asked: The questions.
        scores: Scores that were shown on the deciding metric, by the cell's digest and by seed.
        further_scores: The same of the other metrics that were asked about, by metric.
        outputs: Digests of the texts that were scored, by the cell's digest; by them files are known again.
        trainings: What varies with the seed, by the cell's digest.
        configs: Digests of the settings alone, by the cell's digest, which also depends on text and code.
        winners: Digests that the settings chosen by searches have in a study without a search.
        registration: Short digest of the registration that holds for it; empty without one.
        deviations: Deviations from it, a line each.
    """

    version: int = 1
    time: str = field(compare=False)
    study: str
    variant: str
    system: str
    segments: Segments
    baseline: str
    cells: tuple[str, ...]
    metrics: tuple[str, ...]
    plan: Plan | str = ""
    alpha: float
    asked: tuple[LedgerQuestion, ...]
    scores: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    # Not compared: an analysis that is shown again after a registration is the same one.
    configs: Mapping[str, str] = field(default_factory=dict, compare=False)
    winners: tuple[str, ...] = field(default=(), compare=False)
    trainings: Mapping[str, Training] = field(default_factory=dict, compare=False)
    further_scores: Mapping[str, Mapping[str, Mapping[int, float]]] = field(
        default_factory=dict, compare=False
    )
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    registration: str = field(default="", compare=False)
    deviations: tuple[str, ...] = field(default=(), compare=False)

    @property
    def has_compared(self) -> bool:
        """True if it is more than a declaration."""
        return any(question.difference is not None for question in self.asked)


@dataclass(frozen=True)
class History:
    """The entries on one set of test segments.

    Attributes:
        entries: By number, ascending.
        problems: Entries that could not be read, as sentences.
        whole: The entries on any segments.
    """

    entries: dict[int, Entry]
    problems: tuple[str, ...] = ()
    whole: Mapping[int, Entry] = field(default_factory=dict)


def training_of(study: Study, cell: Cell) -> Training:
    """Describe what varies with the seed in a cell: its trainings, or all that draws numbers without any."""
    seeded = [stage for stage in resolve_cell(study, cell).graph(_ANY_SEED).stages if stage.seed is not None]
    trained = [stage for stage in seeded if stage.work is not None] or seeded
    sizes = {
        stage.name: [
            stage.num_steps,
            stage.size.tokens_per_step,
            # Sizes within a factor of two are alike: arms add a few parameters.
            (stage.size.num_parameters or 0).bit_length(),
            # A pretraining per seed has other noise than one that all seeds share.
            *([] if stage.seed == _ANY_SEED else ["once for all seeds"]),
        ]
        for stage in trained
    }
    varying = [stage for stage in trained if stage.seed == _ANY_SEED]
    config = resolve_config(study, cell, has_absolute_paths=False).model_dump(mode="json")
    data = {
        path: value
        for path, value in dotted(config.get("data") or {})
        if not path.rpartition(".")[2].startswith("test")
    }
    return Training(
        kind=fingerprint({"system": study.system, "sizes": sizes, "data": data})[:_DIGITS],
        weights=fingerprint({stage.fingerprint: stage.name for stage in trained})[:_DIGITS],
        stages=tuple(sorted(stage.name for stage in varying)),
        num_tokens=sum((stage.num_steps or 0) * stage.size.tokens_per_step for stage in varying),
    )


def scored_lines(sources: Sequence[str], references: Sequence[str]) -> list[str]:
    """Describe what each segment is scored on: its reference, whatever blanks are around it.

    Another source, or a blank after it, makes no other segments. Where most references are repeated, as the
    classes of texts are, the source tells segments apart.
    """
    texts = list(map(_plain, references))
    if len(sources) == len(texts) and len(set(texts)) < len(texts) / 2:
        return ["\t".join(pair) for pair in zip(map(_plain, sources), texts, strict=True)]
    return texts


def output_digest(lines: Sequence[str]) -> str:
    """Digest the output of a system, whatever blanks are around its lines."""
    return Segments.of(scored_lines([], lines)).digest


def _plain(line: str) -> str:
    return " ".join(unicodedata.normalize("NFC", line).split())


def open_ledger(store: ArtifactStore) -> Journal[Entry]:
    """Open the ledger of a store."""
    return store.journal("ledger", Entry)


def history(store: ArtifactStore | None, segments: Segments) -> History:
    """Read the entries on segments that overlap with these, and those of version 1, on whatever segments."""
    if store is None:
        return History({})
    pages = open_ledger(store).read()
    entries = {
        number: entry
        for number, entry in pages.documents.items()
        # Version 1 described segments otherwise, so that none of its can be told from these.
        if entry.version < VERSION or entry.segments.overlaps(segments)
    }
    return History(entries, pages.problems, pages.documents)


def record(store: ArtifactStore, entry: Entry) -> None:
    """Write an analysis to the ledger, before it is shown."""
    # The number is taken by writing it, so that drivers agree on an order without a lock; another one may
    # have taken it.
    journal = open_ledger(store)
    while not journal.append(journal.read().last + 1, entry):
        pass
