"""Registrations: what decides what a study computes, asks and concludes, frozen with a date.

They are documents of a journal of the store, as the ledger's are: numbered, dated, never changed. Not frozen
are the description, resources, budgets of a run, and the places of store, tracking and files. Text is frozen
by its lines, wherever it lies. Values that are none or empty are left out, so that a setting that is added to
nlgraft, and is off, changes no digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, JsonValue, TypeAdapter

from nlgraft.analysis.data.ledger import Segments, open_ledger, scored_lines
from nlgraft.analysis.data.results import Results
from nlgraft.basics.wording import timestamp
from nlgraft.pipeline.fingerprint import canonical_json, dotted, fingerprint
from nlgraft.pipeline.record_store import Journal
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.claim import Claim, claims_of
from nlgraft.study.data.design import Cell, axes_of, cells, label_finder
from nlgraft.study.data.study import Study
from nlgraft.study.reading.resolving import resolve_cell, resolve_config
from nlgraft.study.reading.system_import import system_of
from nlgraft.text.corpora import Corpus, load_corpus
from nlgraft.text.corpus_config import SPLITS, ConlangConfig, as_corpus, digest
from nlgraft.text.files import looking_below

_ANY_SEED = 0
_DIGITS = 16

Settings = dict[str, JsonValue]
"""Values by dotted path."""
Texts = dict[str, str]
"""Number and digest of the lines of a corpus, by ``split role``."""


@dataclass(frozen=True, kw_only=True)
class FrozenCell:
    """A cell of a registered study.

    Attributes:
        label: Its label.
        levels: Level by factor.
        settings: The settings that it reads, without those that are searched; text by number and digest of
            its lines.
        stages: Version of every stage of its trials, and digest of what it reads, by name.
    """

    label: str
    levels: Settings
    settings: Settings
    stages: dict[str, tuple[int, str]]


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a registration freezes.

    Attributes:
        system: Import path of the system.
        seeds: The seeds, in the study's order if there are planned looks.
        cells: The cells, the baseline first.
        settings: Objective, looks, search and analysis.
        claims: The claims, cells by their labels.
        metrics: Direction and unit of the metrics that decide.
    """

    system: str
    seeds: tuple[int, ...]
    cells: tuple[FrozenCell, ...]
    settings: Settings
    claims: tuple[Settings, ...]
    metrics: dict[str, str]

    @property
    def digest(self) -> str:
        """SHA-256 of the content, the same on every machine and in every store."""
        return fingerprint(_CONTENT.dump_python(self, mode="json"))


_CONTENT = TypeAdapter(Content)


class Freezer:
    """Freezes studies.

    Args:
        texts: Texts by the fingerprint of their corpus, which need not be read again.

    Attributes:
        texts: Those and the texts that were read.
        tests: The test segments that were read.
    """

    def __init__(self, texts: Mapping[str, Texts] | None = None) -> None:
        self.texts = dict(texts or {})
        self.tests: set[Segments] = set()

    def freeze(self, study: Study) -> Content:
        """Freeze a study.

        Raises:
            DataError: Text cannot be read.
        """
        first, *others = cells(study)
        by_levels = sorted(others, key=lambda cell: canonical_json(cell.levels))
        claims = claims_of(study)
        parts = {name: getattr(study, name) for name in ("objective", "sequential", "search", "analysis")}
        settings = dict(flat({name: part.model_dump(mode="json") for name, part in parts.items() if part}))
        if study.analysis.prior == "none":  # as it was before there were priors
            del settings["analysis.prior"]
        metrics = system_of(study).metrics
        named = [*study.main_metrics, *(metric for claim in claims for metric in claim.metrics)]
        with looking_below(study.mirror):
            frozen = tuple(self._cell(study, cell) for cell in (first, *by_levels))
        return Content(
            system=study.system,
            seeds=tuple(study.seeds if study.sequential is not None else sorted(study.seeds)),
            cells=frozen,
            settings=settings,
            claims=_claims(study, claims),
            metrics={
                name: f"{metrics[name].direction}, {metrics[name].unit}" for name in named if name in metrics
            },
        )

    def _cell(self, study: Study, cell: Cell) -> FrozenCell:
        resolved = resolve_cell(study, cell)
        # As written: a study that moves with its files is the same study.
        written = resolve_config(study, cell, has_absolute_paths=False).model_dump(mode="json")
        searched = () if study.search is None else tuple(study.search.space)
        settings = {
            path: value
            for path, value in flat({name: part for name, part in written.items() if name != "data"})
            if resolved.system.is_read(path, written)
            and not any(path == outer or path.startswith(f"{outer}.") for outer in searched)
        }
        settings |= self._data(getattr(resolved.config, "data", {}), "data")
        return FrozenCell(
            label=cell.label,
            levels=dict(cell.levels),
            settings=settings,
            stages=_stages(resolved.graph(_ANY_SEED)),
        )

    def _data(self, data: Any, path: str) -> Settings:
        """Describe the data of a config: corpora by their text, everything else by its values."""
        if hasattr(data, "corpus"):
            return self._corpus(data, path)
        if not isinstance(data, BaseModel | Mapping):
            return dict(flat({path: list(data) if isinstance(data, tuple) else data}))
        settings = {}
        for name, part in dict(data).items():
            settings |= self._data(part, f"{path}.{name}")
        return settings

    def _corpus(self, data: Any, path: str) -> Settings:
        corpus = as_corpus(data)
        content = digest(corpus)
        key = fingerprint(content)
        if key not in self.texts:
            self.texts[key] = self._read(load_corpus(corpus))
        # Files are described by their lines below, the sizes of constructed text by its settings.
        splits = () if isinstance(corpus, ConlangConfig) else {*SPLITS, *getattr(corpus, "splits", ())}
        settings = {name: value for name, value in content.items() if name not in splits}
        texts = {f"{path}.{stream}": text for stream, text in self.texts[key].items()}
        return dict(flat({path: settings})) | texts

    def _read(self, corpora: Mapping[str, Corpus]) -> Texts:
        descriptions = {}
        for split, corpus in corpora.items():
            for role, lines in corpus.streams().items():
                segments = Segments.of(lines)
                descriptions[f"{split} {role}"] = f"{len(lines):,} lines, {segments.digest[:_DIGITS]}"
            if split.startswith("test"):
                references = corpus.target or corpus.labels or corpus.sources[0]
                self.tests.add(Segments.of(scored_lines(corpus.sources[0], references)))
        return descriptions


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of everything in nested mappings that is neither none nor empty."""
    return ((path, value) for path, value in dotted(values) if value not in (None, [], (), {}))


def _stages(graph: StageGraph) -> dict[str, tuple[int, str]]:
    """Describe stages by name; several of one name are told apart by their place among them."""
    descriptions = {}
    for stage in graph.stages:
        twins = [name for name in descriptions if name.partition(" #")[0] == stage.name]
        name = f"{stage.name} #{len(twins) + 1}" if twins else stage.name
        reads = {
            "config": stage.config,
            "inputs": {key: upstream.name for key, upstream in stage.inputs.items()},
            "is_seeded": stage.seed is not None,
        }
        descriptions[name] = (stage.version, fingerprint(reads)[:_DIGITS])
    return descriptions


def _claims(study: Study, claims: Sequence[Claim]) -> tuple[Settings, ...]:
    axes = axes_of(study)
    label_of = label_finder(axes, axes.cells())
    frozen_claims = []
    for claim in claims:
        labels = [label_of(text) or text for text in claim.cells]
        facts = {
            "better": labels[0],
            "worse": labels[1],
            "exceeds": labels[2:],
            "metric": claim.metric,
            "worse metric": claim.worse_metric,
            "figures": list(claim.figures),
            "margin": claim.margin or None,
            "signature": claim.signature,
            "data": dict(claim.data),
            "source": claim.source,
        }
        frozen_claims.append(dict(flat(facts)))
    return tuple(sorted(frozen_claims, key=canonical_json))


SHOWN_DIGITS = 12
"""Digits of a digest in reports."""
_DAY = 10


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A study as it was registered.

    Attributes:
        time: When, UTC, ISO 8601.
        study: Name of the study.
        variant: Its name with overrides.
        digest: SHA-256 of the content, to be quoted.
        content: What is frozen.
        texts: Texts by the fingerprint of their corpus, so that they need not be read again.
        analyses: Numbers of the analyses of the same test segments that the ledger held then.
        num_analyses: Number of all analyses that it held then.
        num_finished: Replicates that had finished then.
        num_planned: Replicates planned.
    """

    time: str
    study: str
    variant: str
    digest: str
    content: Content
    texts: dict[str, Texts]
    analyses: tuple[int, ...] = ()
    num_analyses: int = 0
    num_finished: int = 0
    num_planned: int = 0

    @property
    def date(self) -> str:
        """The day of the registration."""
        return self.time[:_DAY]

    @property
    def name(self) -> str:
        """Date and short digest, as reports quote it."""
        return f"{self.date}, {self.digest[:SHOWN_DIGITS]}"


def open_registrations(store: ArtifactStore) -> Journal[Registration]:
    """Open the registrations of a store."""
    return store.journal("registrations", Registration)


def register(results: Results, store: ArtifactStore, segments: Segments) -> Registration:
    """Register a study, or find the registration of a study of this name that froze the same.

    Args:
        results: What the store holds of the study.
        store: The store.
        segments: The test segments of its results.

    Raises:
        DataError: Text cannot be read.
    """
    study = results.study
    freezer = Freezer()
    content = freezer.freeze(study)
    tests = {*freezer.tests, segments}
    journal = open_registrations(store)
    # Another driver may take the number first; what it registered may be the same.
    while True:
        pages = journal.read()
        for registration in pages.documents.values():
            if (registration.study, registration.digest) == (study.name, content.digest):
                return registration
        past = open_ledger(store).read()
        replicates = [trial for cell in results.cells for trial in cell.trials]
        entry = Registration(
            time=timestamp(),
            study=study.name,
            variant=study.variant,
            digest=content.digest,
            content=content,
            texts=freezer.texts,
            analyses=tuple(
                number
                for number, past_entry in past.documents.items()
                if past_entry.has_compared and any(past_entry.segments.overlaps(test) for test in tests)
            ),
            num_analyses=past.last,
            num_finished=sum(trial.state == "finished" for trial in replicates),
            num_planned=len(replicates),
        )
        if journal.append(pages.last + 1, entry):
            return entry
