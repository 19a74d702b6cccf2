"""Runs a command and ends all that it started: at its end, and when whoever waits for it asks or dies.

Run as a script, with the standard library alone: ``guard.py PATIENCE_S COMMAND...``. Its standard input is a
pipe; it ends the command when that is closed, which the system does for a process that was killed. The status
is that of the command, 128 and the signal's number for one that a signal ended.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_MARK = "NLGRAFT_COMMAND_OF"
_POLL_S = 0.05


def main(patience_s: float, command: list[str]) -> int:
    """Run a command; return its status."""
    mark = f"{os.getpid()}-{time.time_ns()}"
    environment = {**os.environ, _MARK: mark}
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        print(f"{command[0]}: cannot be started: {error.strerror}", file=sys.stderr)
        return 127

    while (status := process.poll()) is None:
        is_readable, _, _ = select.select([0], [], [], _POLL_S)
        if is_readable and not os.read(0, 1):
            _signal_all(process.pid, mark, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
            _signal_all(process.pid, mark, signal.SIGKILL)
    # What it left behind would hold CPUs and GPUs that are given to the next trial.
    _signal_all(process.pid, mark, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _signal_all(
    group: int,
    mark: str,
    signum: signal.Signals,
) -> None:
    """Signal the process group, and what left it: torchrun starts each worker in a session of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_outside = os.getpgid(int(directory.name)) != group
            if is_outside and f"{_MARK}={mark}".encode() in (directory / "environ").read_bytes():
                os.kill(int(directory.name), signum)


if __name__ == "__main__":
    _, patience_text, *command_words = sys.argv
    sys.exit(main(float(patience_text), command_words))
