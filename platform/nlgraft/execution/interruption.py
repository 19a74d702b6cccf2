"""Signals that end a sweep in an orderly way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """A signal asked the driver to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {signal.Signals(signum).name}")


@contextmanager
def raising_interrupted() -> Iterator[list[int]]:
    """Turn the first SIGTERM or SIGINT into `Interrupted`; the second one ends the process at once.

    Yields:
        The number of the signal that arrived, or an empty list. Outside the main thread, where Python allows
        no signal handlers, it stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        for name in before:
            signal.signal(name, signal.SIG_DFL)
        received.append(signum)
        raise Interrupted(signum)

    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    for name in before:
        signal.signal(name, handle)
    try:
        yield received
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
