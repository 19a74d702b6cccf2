"""The lock that keeps a second driver away from a study and from the searches that it shares with others."""

from __future__ import annotations

from types import TracebackType

from nlgraft.basics.errors import StoreError, StudyLockedError
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import search_key, study_key


class StudyLock:
    """The lock of one study; a context manager that releases it.

    It covers the searches of the study's cells as well: proposals and Optuna studies are keyed by what
    determines them, so that two versions of a study, say with other seeds, share them.

    Raises:
        StudyLockedError: Another driver runs this study, or one that shares a search with it, on this store.
    """

    def __init__(self, study: Study, store: ArtifactStore) -> None:
        searches = [] if study.search is None else [search_key(study, cell) for cell in cells(study)]
        self._name = study.variant
        self._lease = store.lock_study(study_key(study), covers=searches)

    def __enter__(self) -> StudyLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lease.release()

    def protect(self, store: ArtifactStore) -> ArtifactStore:
        """Return the store as this driver and its workers may write it: not without the lock."""
        return store.behind(self._lease.fence)

    def check(self) -> None:
        """Make sure that this driver still holds the lock.

        Raises:
            StudyLockedError: Another driver has taken over.
        """
        if not self._lease.is_held():
            raise StudyLockedError(
                f"another driver has taken over {self._name}, because this one was suspended or cut off from "
                "its store for too long. This one ends and leaves everything to the other; "
                "`nlgraft status` shows how far that is"
            )

    def is_held(self) -> bool:
        """Tell if this driver may still write; also False if the store cannot be asked."""
        try:
            return self._lease.is_held()
        except StoreError:
            return False
