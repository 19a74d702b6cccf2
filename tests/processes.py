"""What processes that a test started do, read from /proc, and how long a test waits for them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def patient(seconds: float) -> float:
    """Lengthen a wait by the number of processes that each CPU of this machine is shared by."""
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def wait_until(
    is_true: Callable[[], object],
    timeout_s: float = 60,
    pause_s: float = 0.01,
    process: subprocess.Popen[str] | None = None,
) -> None:
    """Wait for what others do: threads, or processes, of which one may be given that must not end before."""
    end_s = time.monotonic() + patient(timeout_s)
    while not is_true():
        if process is not None:
            assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end_s
        time.sleep(pause_s)


def at_once(call: Callable[..., object], arguments: Sequence[object]) -> list[object]:
    """Call with each argument, all in threads of their own; return what they return."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return [*pool.map(call, arguments)]


def python(*arguments: str | Path, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python until it ends, which must be with this code; return what it printed."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def descendants(pid: int) -> dict[int, str]:
    """Command lines of a process, of those that it started, and of those that they started."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat, command = ((path / name).read_text(errors="replace") for name in ("stat", "cmdline"))
            processes[int(path.name)] = (int(stat.rpartition(")")[2].split()[1]), command)

    def is_below(process: int) -> bool:
        while process in processes and process != pid:
            process = processes[process][0]
        return process == pid

    return {process: command for process, (_, command) in processes.items() if is_below(process)}


def suspend(processes: Iterable[int], seconds: float) -> None:
    """Stop processes for a while."""
    stopped = [*processes]
    # Twice, since nsenter stops itself once its child has stopped.
    for number, wait_s in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.2), (signal.SIGCONT, 0.0)):
        for process in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        time.sleep(wait_s)


def listening(pid: int) -> list[tuple[str, int]]:
    """Local addresses, as the kernel writes them, and ports on which a process and its descendants listen."""
    sockets = set()
    for process in descendants(pid):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(str(link.readlink()))
    lines = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")).splitlines()
    rows = [line.split() for line in lines]
    places = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return [(address, int(port, 16)) for address, _, port in (place.partition(":") for place in places)]
