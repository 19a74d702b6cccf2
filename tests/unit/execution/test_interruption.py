"""Signals become exceptions, and none is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from nlgraft.execution.interruption import Interrupted, raising_interrupted


class Careless:
    """An object during whose destruction a signal arrives: Python ignores what the handler raises there."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)


def test_a_signal_whose_exception_was_ignored_is_raised_at_the_next_check() -> None:
    with pytest.raises(Interrupted), raising_interrupted() as check:
        expect_interrupted(check)


def expect_interrupted(check: Callable[[], None]) -> None:
    check()
    Careless()
    with pytest.raises(Interrupted, match="SIGHUP") as raised:
        check()
    assert raised.value.signum == signal.SIGHUP


def test_a_signal_whose_exception_was_ignored_is_raised_at_the_end() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with pytest.raises(Interrupted, match="SIGHUP"), raising_interrupted():
        Careless()
    assert signal.getsignal(signal.SIGHUP) is before
