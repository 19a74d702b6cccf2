"""A Ray cluster of this machine alone, which ends with the process that started it.

It is started by ``ray start``, because ``ray.init`` gives it ports that every cluster has by default: a head
beside it would find the port of its job agent taken, and accept no job.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import ClusterError
from nlgraft.execution.interruption import Interrupted

LOOPBACK = "127.0.0.1"
# Off, Ray takes this machine's address to be 127.0.0.1 and listens there alone; read when ray is imported.
MANY_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

_log = logging.getLogger(__name__)

_NUM_STARTS = 3
_MAX_STARTS = 12
_QUICK_S = 20.0
_START_S = 180.0
_END_S = 30.0
_POLL_S = 0.1

# The command `ray` in a process that is told to end when the thread ends that started it (prctl 1:
# PR_SET_PDEATHSIG): the cluster of a killed driver would go on for ever. The driver blocks signals meanwhile.
_RAY_COMMAND = """
import ctypes, os, signal, sys
from importlib.metadata import entry_points
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv.pop(1)):
    (ray,) = entry_points(group="console_scripts", name="ray")
    sys.exit(ray.load()())
"""

_FREE_PORTS = (
    "--port=0",
    "--object-manager-port=0",
    "--node-manager-port=0",
    "--dashboard-agent-listen-port=0",
    "--dashboard-agent-grpc-port=0",
    "--runtime-env-agent-port=0",
    "--metrics-export-port=0",
    "--min-worker-port=0",
    "--max-worker-port=0",
)


class LocalRay:
    """The processes of a cluster of this machine, and the connection of this process to it.

    Args:
        directory: Where Ray keeps its files; a short path, because those of its sockets are limited.
        capacity: ``{"CPU": ..., "GPU": ...}``.
    """

    def __init__(self, directory: Path, capacity: dict[str, float]) -> None:
        self._directory = directory
        self._capacity = capacity
        self._head: subprocess.Popen[bytes] | None = None

    def start(self, ray: Any, env_vars: dict[str, str]) -> None:
        """Start the cluster and join it.

        Ray gives its own processes 30 s to start, too little on a busy machine: hence several attempts, the
        more the busier it is. One that fails at once fails for another reason.

        Args:
            ray: The module.
            env_vars: Environment of the workers.

        Raises:
            ClusterError: It did not start.
        """
        _provide_token()
        attempt = 0
        while True:
            attempt += 1
            began_s = time.monotonic()
            try:
                self._start_once(ray, env_vars, self._directory / str(attempt))
                return
            except Exception as error:
                ray.shutdown()
                self.end()
                load = os.getloadavg()[0] / self._capacity["CPU"]
                is_quick = time.monotonic() - began_s < _QUICK_S
                num_starts = _NUM_STARTS if is_quick else min(_NUM_STARTS + int(load), _MAX_STARTS)
                busy = f"{load:.1f} processes wait for each CPU of this machine"
                if attempt >= num_starts:
                    raise ClusterError(
                        f"Ray did not start on this machine in {attempt} attempts: {error} ({busy})"
                    ) from error
                _log.warning("Ray did not start, attempt %d of %d (%s): %s", attempt, num_starts, busy, error)

    def end(self) -> None:
        """End the cluster's processes."""
        if self._head is None:
            return
        self._head.terminate()
        try:
            self._head.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._head.kill()  # its children end with it
            self._head.wait()
        self._head = None

    def _start_once(self, ray: Any, env_vars: dict[str, str], directory: Path) -> None:
        directory.mkdir()
        # 127.0.0.1, unless ray was imported without MANY_MACHINES=0: then it is this machine's address.
        node = ray.util.get_node_ip_address()
        self._await_address(self._start_head(directory, node), directory)
        # With `auto`, because with an address Ray does not look for a token if it is imported already.
        ray.init(
            address="auto",
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=node,
            _temp_dir=str(directory),
            runtime_env={"env_vars": env_vars},
        )
        if node != LOOPBACK:
            _log.warning(
                "Ray listens on all network interfaces of this machine (%s), though only with its token. To "
                "keep it on %s, set %s=0 before ray is imported",
                node,
                LOOPBACK,
                MANY_MACHINES,
            )

    def _start_head(self, directory: Path, node: str) -> Path:
        """Start the processes with a node's address; return the file that they write to."""
        output = directory / "output"
        command = [sys.executable, "-c", _RAY_COMMAND, str(os.getpid()), "start", "--head", "--block"]
        shape = [f"--num-cpus={int(self._capacity['CPU'])}", f"--num-gpus={int(self._capacity['GPU'])}"]
        place = [f"--node-ip-address={node}", f"--temp-dir={directory}", "--include-dashboard=false"]
        with output.open("wb") as file:
            self._head = subprocess.Popen(
                [*command, *shape, *place, *_FREE_PORTS, f"--ray-client-server-port={_free_port()}"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, MANY_MACHINES: "0" if node == LOOPBACK else "1"},
                start_new_session=True,  # an interrupt from the keyboard is the driver's
            )
        return output

    def _await_address(self, output: Path, directory: Path) -> None:
        """Wait until `ray.init` can find the cluster."""
        address = directory / "ray_current_cluster"
        end_s = time.monotonic() + _START_S
        assert self._head is not None
        while not (address.is_file() and address.read_text()):
            if self._head.poll() is not None:
                lines = output.read_text(errors="replace").strip().splitlines() or ["no output"]
                raise ClusterError(f"`ray start` ended with {self._head.returncode}: {lines[-1].strip()}")
            for signum in signal.sigpending():  # blocked until Ray has started
                raise Interrupted(signum)
            if time.monotonic() > end_s:
                raise ClusterError(f"`ray start` was not ready after {_START_S:g} s")
            time.sleep(_POLL_S)


def _free_port() -> int:
    """Find a free port, for a server that cannot; should it be lost meanwhile, the start is repeated."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def _provide_token() -> None:
    """Give clusters of this process a token of their own where the user has none.

    Kept as long as the process lives, since Ray reads it once.
    """
    has_file = (Path.home() / ".ray" / "auth_token").is_file()
    if not has_file and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
