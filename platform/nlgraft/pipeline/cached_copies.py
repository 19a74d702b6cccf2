"""Local copies of what an object store holds: where a disk gets full, the least recently used go.

A process holds the copies that it fetched last by a lock on each, which the kernel ends with the process. On
file systems without such locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections import deque
from pathlib import Path

from nlgraft.pipeline.integrity import remove_tree
from nlgraft.pipeline.local_files import LocalFiles

_FREE_SHARE = 0.1
# A stage has few inputs; each copy that is held takes a file descriptor.
_NUM_HELD = 32
_held: deque[int] = deque()


def hold(directory: Path) -> None:
    """Keep a directory, if it is there, from being removed, and note that it is used now."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        _held.append(descriptor)
        if len(_held) > _NUM_HELD:
            os.close(_held.popleft())
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)


def make_room(root: Path) -> None:
    """Remove copies below a root that no process holds until a tenth of its disk is free."""
    if not _is_short(root):
        return
    files = LocalFiles(root)
    for directory in sorted(
        root.glob("[ac]*/*/*/*"), key=lambda path: files.modified_at(os.fspath(path)) or 0.0
    ):
        if _is_short(root):
            with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
                descriptor = os.open(directory, os.O_RDONLY)
                closing.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Away in one step: whoever waits for the lock finds nothing there and fetches it again.
                remove_tree(directory.rename(directory.with_name(f".{uuid.uuid4().hex}")))


def _is_short(root: Path) -> bool:
    usage = shutil.disk_usage(root)
    return usage.free < _FREE_SHARE * usage.total
