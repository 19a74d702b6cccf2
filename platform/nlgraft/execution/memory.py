"""Memory of worker processes that run one trial after another."""

from __future__ import annotations

import ctypes
import re

from nlgraft.basics.errors import ClusterError

_AMOUNTS = re.compile(r"was (\S+) used / (\S+) limit")


def return_freed_memory() -> None:
    """Return the memory that a trial freed to the operating system.

    Tune runs every trial in a thread of its own, and glibc keeps freed memory in the arenas of threads: about
    1 GB per trial of a BERT with 14 million parameters, until the node has none left. Other C libraries,
    which have no such function, keep less.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def memory_shortage(error: BaseException) -> ClusterError | None:
    """Explain that Ray ended a worker because its node ran out of memory; None for other errors."""
    text = str(error)
    if "running low on memory" not in text:
        return None
    amounts = _AMOUNTS.search(text)
    used = f" ({amounts[1]} used, Ray's limit is {amounts[2]})" if amounts else ""
    return ClusterError(
        f"a node ran low on memory{used}, so Ray ended a worker; run fewer trials at a time "
        "(resources.max_concurrent) or smaller batches, and start the run again: finished stages are kept"
    )
