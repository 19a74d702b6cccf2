"""Signals that end a driver in an orderly way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the driver to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {signal.Signals(signum).name}")


@contextmanager
def raising_interrupted() -> Iterator[None]:
    """Turn the first SIGTERM, SIGINT or SIGHUP into `Interrupted`; the second one ends the process at once.

    A signal that the process was started to ignore (``nohup``) stays ignored. Outside the main thread, where
    Python allows no handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def handle(signum: int, frame: FrameType | None) -> None:
        for name in before:
            signal.signal(name, signal.SIG_DFL)
        received.append(signum)
        raise Interrupted(signum)

    before = {name: signal.getsignal(name) for name in _ENDING}
    before = {name: handler for name, handler in before.items() if handler is not signal.SIG_IGN}
    for name in before:
        signal.signal(name, handle)
    try:
        yield
    except BaseException:
        # Compiled code may turn what a handler raises into an error of its own.
        if received:
            raise Interrupted(received[0]) from None
        raise
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def signals_kept_from_ray() -> Iterator[None]:
    """Start Ray without giving it this process's signals.

    Ray's processes inherit the blocked signals, as they do SIGINT by Ray's own choice. So a signal to the
    whole process group, as ``timeout`` and batch schedulers send it, reaches the driver alone, which ends the
    others in order. Ray also replaces the handlers of its driver by ones that exit or dump the stack.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {name: signal.getsignal(name) for name in _ENDING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    except SystemExit:
        # What Ray's handler of SIGTERM raises, should another thread have taken the signal.
        raise Interrupted(signal.SIGTERM) from None
    finally:
        if is_main:
            for name, handler in handlers.items():
                signal.signal(name, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
