"""Errors of the operating system on a store, reworded as one message that says what to do."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nlgraft.basics.errors import HostFault, StoreError

_ELSEWHERE = "or name another store (storage.path in the study, or --storage)"
_ADVICE = {
    errno.EACCES: f"Make it accessible to this user, {_ELSEWHERE}",
    errno.EPERM: f"Make it accessible to this user, {_ELSEWHERE}",
    errno.EROFS: f"Mount it writable, {_ELSEWHERE}",
    errno.ENOSPC: f"Free space there, {_ELSEWHERE}",
    errno.EDQUOT: f"Free space there, {_ELSEWHERE}",
}


@contextmanager
def explained(action: str) -> Iterator[None]:
    """Raise `StoreError` in place of OSError; also a decorator.

    Args:
        action: What fails, as in "cannot <action>".
    """
    try:
        yield
    except OSError as error:
        # Of a rename or a link, the second name is the target, which lies in the store.
        place = error.filename2 or error.filename
        what = f"the store cannot {action}{f' {place}' if place else ''}: {error.strerror or error}"
        advice = _ADVICE.get(error.errno or 0)
        raise StoreError(f"{what}. {advice}" if advice else what) from error


def host_fault(error: BaseException, directory: Path) -> HostFault:
    """Word an error of the disk on which a host keeps what it fetches and writes."""
    number = getattr(error, "errno", None) or errno.ENOSPC
    return HostFault(
        f"host {socket.gethostname()} cannot use {directory}: {os.strerror(number)}. Free space there, or "
        "let NLGRAFT_CACHE name another directory"
    )
