"""Shape of a worker group; apart from `distributed_stages`, which imports torch as a driver need not."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from nlgraft.basics.wording import duration
from nlgraft.pipeline.execute import THREADS
from nlgraft.pipeline.stage import Reporter


@dataclass(frozen=True)
class WorkerGroup:
    """Shape of the processes that train one trial.

    Attributes:
        num_workers: Their number, or the most of them.
        cpus_per_worker: CPUs of each worker; also its number of threads.
        max_failures: How often a worker is replaced that was lost without its node; an error of the training
            itself is not retried.
        stall_s: Longest time without progress of a training; None: without limit.
        run_directory: Where Ray Train keeps its own small files.
        least_workers: With how few of them a trial goes on; None: only with all.
        growth_s: Time between looks for more of them: to grow costs the steps since the last checkpoint.
    """

    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    max_failures: int
    run_directory: str
    stall_s: float | None = None
    least_workers: int | None = None
    growth_s: float = 300.0

    @property
    def shape(self) -> dict[str, float]:
        """Resources of a worker, by Ray's names."""
        return {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}

    @property
    def device(self) -> str:
        """The torch device of a worker."""
        return "cuda" if self.gpus_per_worker else "cpu"

    @property
    def num_threads(self) -> int:
        """Threads of a worker: one per CPU."""
        return max(1, int(self.cpus_per_worker))


# Ends a process whose training makes no progress, and tells where its threads stood.


LOOKS = 10
"""How often within the time that a training may be silent it is looked at."""


class StallWatch:
    """A reporter that passes everything on; a training is silent while it calls none of its methods.

    Time in which the whole process was stopped does not count, nor does the time that a call takes.

    Args:
        inner: Receives everything.
        limit_s: Longest silence.
        trainings: Fingerprints of the stages that are watched.
        tell: Receives what happened, in one line, and the stacks of all threads; the process ends after it.
    """

    def __init__(
        self,
        inner: Reporter,
        limit_s: float,
        trainings: Collection[str],
        tell: Callable[[str, str], object],
    ) -> None:
        self._inner = inner
        self._limit_s = limit_s
        self._trainings = frozenset(trainings)
        self._tell = tell
        self._num_calls = 0
        self._is_inside = False
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, name="stall-watch", daemon=True).start()

    def report(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Pass a report on."""
        with self._call():
            self._inner.report(stage, step, metrics)

    def should_stop(self) -> str | None:
        """Pass the question on."""
        with self._call():
            return self._inner.should_stop()

    def close(self) -> None:
        """Watch no longer."""
        self._is_over.set()

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._num_calls += 1
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def _watch(self) -> None:
        pause_s = self._limit_s / LOOKS
        silent_s, before, last_s = 0.0, ("", 0), time.monotonic()
        while not self._is_over.wait(pause_s):
            now_s, state = time.monotonic(), (THREADS.stage, self._num_calls)
            # In a call others are waited for, such as a scheduler, and their time is not the training's.
            if state != before or self._is_inside or THREADS.stage not in self._trainings:
                silent_s = 0.0
            else:  # a longer pause than asked for means that the process slept
                silent_s += min(now_s - last_s, 2 * pause_s)
            before, last_s = state, now_s
            if silent_s >= self._limit_s:
                self._end()

    def _end(self) -> None:
        try:
            what = f"no progress for {duration(self._limit_s)} (resources.stall_timeout)"
            self._tell(f"{what}; it stood at {_place()}", stacks())
        finally:
            os._exit(1)  # nothing else ends a thread that waits in compiled code


def _place() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def stacks() -> str:
    """Return the stacks of all threads of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
