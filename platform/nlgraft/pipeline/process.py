"""Identity of a process and whether it has ended, for leases whose owner may be dead."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, distinct from a later one of the same number.

    Attributes:
        host: Host name.
        namespace: Boot and process-number namespace: numbers compare only within one. Empty where unknown.
        pid: Process number.
        started: When it started, in kernel ticks since boot. Empty where unknown.
    """

    host: str
    namespace: str
    pid: int
    started: str


def this_process() -> ProcessIdentity:
    """Identify the calling process."""
    pid = os.getpid()
    state = _kernel_state(pid)
    return ProcessIdentity(socket.gethostname(), _namespace(), pid, state[1] if state else "")


def is_dead(identity: ProcessIdentity) -> bool:
    """Return True if a process ran on this host and has ended; False if it lives or cannot be looked up."""
    if (identity.host, identity.namespace) != (socket.gethostname(), _namespace()):
        return False
    try:
        os.kill(identity.pid, 0)  # sends nothing, and fails if there is no such process
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # it belongs to another user
    state = _kernel_state(identity.pid)
    if state is None:
        return False
    condition, started = state
    # A zombie has ended; another start time means that the number was given to a new process.
    return condition in ("Z", "X") or started != identity.started


def _kernel_state(pid: int) -> tuple[str, str] | None:
    """State letter and start time; None where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    rest = text.rpartition(")")[2].split()  # the command's name may contain blanks and brackets
    return rest[0], rest[19]


@cache
def _namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
