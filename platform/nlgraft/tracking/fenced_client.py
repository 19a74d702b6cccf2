"""An MLflow client that asks before each request that writes whether this driver still may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from mlflow import MlflowClient
from mlflow.entities import Run

from nlgraft.errors import StudyLockedError

_READING = ("get_", "search_", "list_")


def fenced_client(client: MlflowClient, may_write: Callable[[], bool]) -> MlflowClient:
    """Return a client whose writes are refused once another driver writes this study.

    MLflow has no conditional requests: one that is on its way when the process is stopped arrives. A run
    that is created so is deleted again, since it may be there twice.
    """
    return cast(MlflowClient, _FencedClient(client, may_write))


class _FencedClient:
    def __init__(self, client: MlflowClient, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._may_write = may_write

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if name.startswith(_READING) or not callable(attribute):
            return attribute

        def write(*arguments: Any, **options: Any) -> Any:
            self._check()
            return attribute(*arguments, **options)

        return write

    def create_run(self, *arguments: Any, **options: Any) -> Run:
        """Create a run, and delete it if this driver may not write any more."""
        self._check()
        run = self._client.create_run(*arguments, **options)
        if not self._may_write():
            self._client.delete_run(run.info.run_id)
        self._check()
        return run

    def _check(self) -> None:
        if not self._may_write():
            raise StudyLockedError("another driver writes this study to MLflow")
