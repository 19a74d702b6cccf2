"""What goes wrong beneath a sweep: a lost cluster, lost workers, no memory."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nlgraft.basics.errors import EXIT_FAILED, ClusterError
from nlgraft.basics.wording import count

_PAUSE_S = 1.0
_CONNECT_S = 5.0
_HANGING_S = 10.0
# Ray ends its driver after 60 s. A process of this machine that does not answer is dead; a head may restart.
_PATIENCE = {True: 2, False: 30}


class ClusterWatch:
    """Watches the Ray processes on which a driver depends.

    A context manager around the sweep. A loss interrupts the main thread by SIGTERM, since Ray's calls may
    block for ever; the sweep then reads `loss`. If a call cannot be interrupted, the watch prints the loss
    and ends the process, as Ray itself would after a minute and with a stack dump.

    Args:
        places: Host and port by name of the process.
        address: The cluster that was joined; None if this process started it.
    """

    def __init__(self, places: Mapping[str, tuple[str, int]], address: str | None) -> None:
        self._places = places
        self._address = address
        self._missing: str | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cluster-watch", daemon=True)
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> ClusterWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def loss(self) -> ClusterError | None:
        """The error that names what was lost; None if nothing is."""
        if self._missing is None:
            return None
        if self._address is None:
            what, remedy = "Ray on this machine", "It was killed, perhaps for want of memory"
        else:
            what = f"the Ray cluster at {self._address}"
            remedy = f"Check the cluster (`ray status --address {self._address}`)"
        return ClusterError(
            f"lost {what}: its {self._missing} does not answer any more. {remedy}. "
            "Run the same command again to resume; trials that were running run again"
        )

    def check(self, *, is_suspect: bool = False) -> None:
        """Make sure that nothing is lost.

        Args:
            is_suspect: True if something failed that may be due to a loss: look now.

        Raises:
            ClusterError: The cluster is lost.
        """
        if is_suspect and self._missing is None:
            self._missing = self._find_missing()
        if self.loss is not None:
            raise self.loss

    def _watch(self) -> None:
        while self._missing is None:
            if self._is_over.wait(_PAUSE_S):
                return
            self._missing = self._find_missing()
        # A sweep in another thread takes no signal; there `check` raises when Tune asks for a trial.
        if self._is_main and not self._is_over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            if not self._is_over.wait(_HANGING_S):
                print(self.loss, file=sys.stderr, flush=True)
                os._exit(EXIT_FAILED)

    def _find_missing(self) -> str | None:
        """Name a process that does not answer repeatedly; None if all do."""
        missing: str | None = None
        for _ in range(_PATIENCE[self._address is None]):
            missing = next((name for name, place in self._places.items() if not answers(place)), None)
            if missing is None or self._is_over.wait(_PAUSE_S):
                return None
        return missing


def places_of_driver() -> dict[str, tuple[str, int]]:
    """Find the cluster's control service and the raylet of the driver's node."""
    import ray

    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    places = {"control service (gcs_server)": (host, int(port))}
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            places["raylet"] = (node["NodeManagerAddress"], node["NodeManagerPort"])
    return places


def answers(place: tuple[str, int]) -> bool:
    """Tell if a process listens at a host and port."""
    try:
        socket.create_connection(place, _CONNECT_S).close()
    except OSError:
        return False
    return True


# Memory of worker processes that run one trial after another.


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


# Losses of processes that compute a trial: with their node, which is a preemption, or alone, a failure.


MAX_PREEMPTIONS = 50
"""How often a trial survives the loss of a node; bounded, since the trial may be what brings them down."""

PROCESS_DIED = "the worker process died: out of memory, a crash in native code, or the trial left Python"


@dataclass
class Losses:
    """Counts the losses of one trial.

    A process that died on a node which is still there counts as crashed, or killed for want of memory: Ray
    cannot tell who sent a SIGKILL.

    Attributes:
        max_failures: How many failures a trial survives.
        num_failures: Processes lost alone.
        num_preemptions: Nodes lost or about to be taken away.
    """

    max_failures: int
    num_failures: int = 0
    num_preemptions: int = 0

    def add(self, *, is_preemption: bool) -> None:
        """Count a loss."""
        if is_preemption:
            self.num_preemptions += 1
        else:
            self.num_failures += 1

    @property
    def number(self) -> int:
        """Losses of both kinds."""
        return self.num_failures + self.num_preemptions

    @property
    def reason_to_end(self) -> str | None:
        """Why the trial is not tried again; None if it is."""
        if self.num_failures > self.max_failures:
            losses_text = count(self.num_failures, "time")
            return f"a worker was lost {losses_text}, resources.max_failures allows {self.max_failures}"
        if self.num_preemptions > MAX_PREEMPTIONS:
            return f"its nodes were lost {count(self.num_preemptions, 'time')}, {MAX_PREEMPTIONS} are allowed"
        return None


def is_any_lost(nodes: Iterable[str]) -> bool:
    """Tell if one of these nodes, given by Ray's ids, is not there any more.

    Ray takes up to half a minute to notice, and its worker is lost at once: each raylet is asked as well.
    """
    import ray  # not above: the driver of a completed study need not load it

    alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    places = {name: (node["NodeManagerAddress"], node["NodeManagerPort"]) for name, node in alive.items()}
    return not all(node in places and answers(places[node]) for node in set(nodes))
