"""Detects the loss of the Ray cluster before Ray ends the driver without saying what to do."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from types import TracebackType

from nlgraft.basics.errors import EXIT_FAILED, ClusterError

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
