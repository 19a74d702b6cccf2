"""A study that runs while its caller goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nlgraft.basics.errors import NlgraftError
from nlgraft.runs.run import Run

if TYPE_CHECKING:
    from nlgraft.analysis.study_result import StudyResult
    from nlgraft.execution.events import Event


class Handle:
    """A study that runs in a thread of this process; made by `nlgraft.api.launch`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._outcome: StudyResult | BaseException | None = None
        passed_on = run.on_event

        def observe(event: Event) -> None:
            self._events.put(event)
            if passed_on is not None:
                passed_on(event)

        run.on_event = observe
        self._thread = threading.Thread(target=self._work, name=f"nlgraft-{run.study.variant}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "runs" if self._thread.is_alive() else "has ended"
        return (
            f"Handle of {self._run.study.variant}, which {state} in a thread of this process\n"
            "  next: .events() yields events; .status() counts trials; .stop(); .result() waits"
        )

    def _work(self) -> None:
        try:
            self._outcome = self._run.result()
        except BaseException as error:  # raised again by `result`, in the thread that asks for it
            self._outcome = error
        finally:
            self._events.put(None)

    def events(self) -> Iterator[Event]:
        """Yield the sweep's events as they come, until it ends; each event is yielded once."""
        while (event := self._events.get()) is not None:
            yield event
        self._events.put(None)  # the end stays, for whoever iterates again

    def status(self) -> dict[str, Any]:
        """Count the trials of each cell by state."""
        from nlgraft.execution.status import read_status

        return read_status(self._run.study, self._run.store)

    def stop(self) -> None:
        """Start no further trial and ask the running ones to end at their next report."""
        self._run.stop()

    def result(self, timeout_s: float | None = None) -> StudyResult:
        """Wait for the end and return the result.

        Args:
            timeout_s: Seconds to wait at most; None waits without limit.

        Raises:
            NlgraftError: The sweep is still running after ``timeout_s``.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise NlgraftError(f"{self._run.study.variant} is still running after {timeout_s:g} s")
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome
