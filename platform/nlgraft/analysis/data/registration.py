"""Registrations: what a study asks, frozen with a date before its results are known.

They are documents of a journal of the store, as the ledger's are: numbered, dated, never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nlgraft.analysis.data.frozen import Content, Freezer, Texts
from nlgraft.analysis.data.ledger import Segments, open_ledger
from nlgraft.analysis.data.results import Results
from nlgraft.basics.wording import timestamp
from nlgraft.pipeline.journal import Journal
from nlgraft.pipeline.store import ArtifactStore

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
        keys: Digests of the configs of the cells, by which the same cells in other studies are found.
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
    keys: tuple[str, ...]
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


def register(
    results: Results, store: ArtifactStore, keys: Mapping[str, str], segments: Segments
) -> Registration:
    """Register a study, or find the registration of a study of this name that froze the same.

    Args:
        results: What the store holds of the study.
        store: The store.
        keys: Digests of the configs of its cells, by label.
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
            keys=tuple(dict.fromkeys(keys.values())),
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
