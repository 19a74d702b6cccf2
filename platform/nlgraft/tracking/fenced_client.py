"""An MLflow client that asks before each request that writes whether this driver still may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from mlflow import MlflowClient
from mlflow.entities import Run

from nlgraft.basics.errors import StudyLockedError
from nlgraft.pipeline.fence import Guarded

_READING = ("get_", "search_", "list_")


def fenced_client(client: MlflowClient, may_write: Callable[[], bool]) -> MlflowClient:
    """Return a client whose writes are refused once another driver writes this study.

    MLflow has no conditional requests: one that is on its way when the process is stopped arrives. A run
    that is created so is deleted again, since it may be there twice.
    """

    def check() -> None:
        if not may_write():
            raise StudyLockedError("another driver writes this study to MLflow")

    return cast(MlflowClient, _FencedClient(client, check, lambda name: name.startswith(_READING)))


class _FencedClient(Guarded):
    def create_run(self, *arguments: Any, **options: Any) -> Run:
        """Create a run, and delete it if this driver may not write any more."""
        self._check()
        run = self._inner.create_run(*arguments, **options)
        try:
            self._check()
        except StudyLockedError:
            self._inner.delete_run(run.info.run_id)
            raise
        return run
