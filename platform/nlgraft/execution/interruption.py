"""Signals that end a driver in an orderly way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from nlgraft.basics.errors import StoreError, StudyLockedError
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import search_key, study_key

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the driver to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {signal.Signals(signum).name}")


_received: list[int] | None = None
"""Signals that have arrived in the outermost context; None outside of all."""


@contextmanager
def raising_interrupted() -> Iterator[Callable[[], None]]:
    """Turn the first SIGTERM, SIGINT or SIGHUP into `Interrupted`; the second one ends the process at once.

    Contexts inside another one share its signals: the first one is raised in the innermost, and the second
    ends the process wherever it has come to.

    Python ignores what a handler raises in a destructor or in a callback of compiled code. Long work calls
    the function that this yields: it raises `Interrupted` after a signal, as does the end.

    A signal that the process was started to ignore (``nohup``) stays ignored. Outside the main thread, where
    Python allows no handlers, nothing changes.
    """
    global _received
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    is_outermost = _received is None
    received = _received = [] if _received is None else _received

    def check() -> None:
        if received:
            raise Interrupted(received[0])

    before = _raise_from_signals(received) if is_outermost else {}
    try:
        yield check
        check()
    except BaseException:
        # Compiled code may turn what a handler raises into an error of its own.
        if received:
            raise Interrupted(received[0]) from None
        raise
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        if is_outermost:
            _received = None


def _raise_from_signals(received: list[int]) -> dict[signal.Signals, Any]:
    """Let the next signal be noted and raised, and those after it end the process; return what was before."""

    def handle(signum: int, frame: FrameType | None) -> None:
        # At once, so that a second signal ends a process which hangs in its own clean-up.
        for name in before:
            signal.signal(name, signal.SIG_DFL)
        received.append(signum)
        raise Interrupted(signum)

    before = {name: signal.getsignal(name) for name in _ENDING}
    before = {name: handler for name, handler in before.items() if handler is not signal.SIG_IGN}
    for name in before:
        signal.signal(name, handle)
    return before


_mask_outside: set[int | signal.Signals] | None = None
"""The signals that were blocked before Ray started; None while it does not start."""


def _leave_process_group() -> None:
    """Put a new process of Ray into a group of its own, with the signals that the driver had blocked."""
    if _mask_outside is not None:
        os.setpgrp()
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask_outside)


os.register_at_fork(after_in_child=_leave_process_group)


@contextmanager
def signals_kept_from_ray() -> Iterator[None]:
    """Start Ray without giving it this process's signals.

    A signal to the whole process group, as ``timeout``, batch schedulers and closed terminals send it, then
    reaches the driver alone, which ends the others in order. The driver takes it when Ray has started: Ray
    replaces the driver's handlers meanwhile, by ones that exit or dump the stack.
    """
    global _mask_outside
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {name: signal.getsignal(name) for name in _ENDING}
    _mask_outside = mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    except SystemExit:
        # What Ray's handler of SIGTERM raises, should another thread have taken the signal.
        raise Interrupted(signal.SIGTERM) from None
    finally:
        _mask_outside = None
        if is_main:
            for name, handler in handlers.items():
                signal.signal(name, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# The lock that keeps a second driver away from a study and from the searches that it shares with others.


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
        self._lease = store.leases.lock_study(study_key(study), covers=searches)

    def __enter__(self) -> StudyLock:
        return self

    def __exit__(self, *_: object) -> None:
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
