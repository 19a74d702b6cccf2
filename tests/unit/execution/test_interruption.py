"""Signals become exceptions, and none is lost."""

import os
import signal

import pytest

from nlgraft.execution.interruption import Interrupted, raising_interrupted
from tests.processes import python


class Careless:
    """An object during whose destruction a signal arrives: Python ignores what the handler raises there."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGHUP)


def test_a_signal_whose_exception_was_ignored_is_raised_at_the_next_check():
    with pytest.raises(Interrupted), raising_interrupted() as check:
        expect_interrupted(check)


def expect_interrupted(check):
    check()
    Careless()
    with pytest.raises(Interrupted, match="SIGHUP") as raised:
        check()
    assert raised.value.signum == signal.SIGHUP


def test_a_signal_whose_exception_was_ignored_is_raised_at_the_end():
    before = signal.getsignal(signal.SIGHUP)
    with pytest.raises(Interrupted, match="SIGHUP"), raising_interrupted():
        Careless()
    assert signal.getsignal(signal.SIGHUP) is before


TWO_SIGNALS = """
import os, signal
from nlgraft.execution.interruption import Interrupted, raising_interrupted

with raising_interrupted():
    try:
        with raising_interrupted():
            os.kill(os.getpid(), signal.SIGTERM)
    except Interrupted:
        print("ending", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        print("still there")
"""


def test_a_second_signal_ends_the_process_also_on_the_way_out_of_an_inner_context():
    assert python("-c", TWO_SIGNALS, code=-signal.SIGTERM).stdout == "ending\n"
