"""The Ray cluster that a sweep runs on, its capacity, and the refusal of trials that can never fit."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import CapacityError, ClusterError
from nlgraft.execution.interruption import Interrupted, signals_kept_from_ray
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.cost import capacity_problems, max_concurrent

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

# Told to end, Ray waits 30 s for what still runs; all that this process needed has ended by then.
_NO_DRAIN = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}

# The command `ray` in a process that is told to end when the thread ends that started it (prctl 1:
# PR_SET_PDEATHSIG): the cluster of a killed driver would go on for ever. The driver blocks signals meanwhile.
# Nor would anybody remove its files: what is registered first is called last, after the end of Ray.
_RAY_COMMAND = """
import atexit, ctypes, os, shutil, signal, sys
from importlib.metadata import entry_points
driver, directory = int(sys.argv.pop(1)), sys.argv.pop(1)
atexit.register(lambda: os.getppid() == driver or shutil.rmtree(directory, ignore_errors=True))
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == driver:
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


@dataclass
class LocalRay:
    """The processes of a cluster of this machine, and the connection of this process to it.

    Args:
        directory: Where Ray keeps its files; a short path, because those of its sockets are limited.
        capacity: ``{"CPU": ..., "GPU": ...}``.
    """

    _directory: Path
    _capacity: dict[str, float]
    _head: subprocess.Popen[bytes] | None = None

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

    def _start_once(
        self,
        ray: Any,
        env_vars: dict[str, str],
        directory: Path,
    ) -> None:
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
        ray_command = [sys.executable, "-c", _RAY_COMMAND, str(os.getpid()), str(self._directory)]
        shape = [f"--num-cpus={int(self._capacity['CPU'])}", f"--num-gpus={int(self._capacity['GPU'])}"]
        place = [f"--node-ip-address={node}", f"--temp-dir={directory}", "--include-dashboard=false"]
        with output.open("wb") as file:
            self._head = subprocess.Popen(
                [
                    *ray_command,
                    "start",
                    "--head",
                    "--block",
                    *shape,
                    *place,
                    *_FREE_PORTS,
                    f"--ray-client-server-port={_free_port()}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_NO_DRAIN, MANY_MACHINES: "0" if node == LOOPBACK else "1"},
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


# The process that drives a trial of several workers must hold no CPU, or drivers would take the CPUs that
# their own workers wait for. Every Ray cluster has this resource, on its head only.
HEAD_RESOURCE = "node:__internal_head__"
DRIVER_SHARE = 0.001

# Under `uv run` Ray builds an environment for each worker; read when ray is imported.
_UV_ENVIRONMENT = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # Tune's own tables would mix with ours and with --json
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard files for each trial
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # signals are those of `interruption`
    # Tune's own state is never restored, so it is written rarely and without a warning if that is slow.
    "TUNE_GLOBAL_CHECKPOINT_S": "600",
    # By default Tune starts one worker process at a time; the trial queue knows how many may run.
    "TUNE_MAX_PENDING_TRIALS_PG": "10000",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True)
class WorkerGroup:
    """The processes that train one trial.

    Attributes:
        resources: Their number and shape.
        run_directory: Where Ray Train keeps its own small files.
        growth_s: Time between looks for more workers: to grow costs the steps since the last checkpoint.
        is_spread: True to use as many nodes as there are, not as few as suffice.
    """

    resources: Resources
    run_directory: str
    growth_s: float = 300.0
    is_spread: bool = False


def prepare_process(address: str | None) -> None:
    """Let a Ray that this process may start listen on 127.0.0.1 alone.

    For processes that serve one run: the setting holds from the import of ray on, and with it no cluster of
    several machines can be joined.
    """
    if is_local(address):
        os.environ.setdefault(MANY_MACHINES, "0")


def num_local_gpus() -> int:
    """Count the NVIDIA GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, without loading a driver library."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return sum(entry.strip() not in ("", "-1") for entry in visible.split(","))
    listing = Path("/proc/driver/nvidia/gpus")
    if listing.is_dir():
        return len(list(listing.iterdir()))
    return 0


def local_capacity() -> dict[str, float]:
    """Return the capacity of a Ray cluster started on this machine, ``{"CPU": ..., "GPU": ...}``.

    CPUs are those that this process may use.
    """
    return {"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(num_local_gpus())}


def local_memory_bytes() -> float:
    """Return the size of this machine's memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def check_fit(
    resources: Resources,
    capacity: Mapping[str, float],
    where: str,
) -> int:
    """Compute how many trials run at once, at least 1.

    Args:
        resources: The shape of one trial.
        where: Name of the cluster, for the message.

    Raises:
        CapacityError: One trial can never fit; Ray itself would wait for ever without a message.
    """
    problems = capacity_problems(resources, capacity, where)
    if problems:
        raise CapacityError("; ".join(map(str, problems)))
    return max_concurrent(resources, capacity)


def check_local_fit(resources: Resources, address: str | None) -> None:
    """Refuse a trial that can never fit this machine, if this machine would run it.

    Raises:
        CapacityError: One trial can never fit.
    """
    if is_local(address):
        check_fit(resources, local_capacity(), "this machine")


def is_local(address: str | None) -> bool:
    """Tell if a sweep starts a Ray cluster of its own; inside ``ray job submit``, ``RAY_ADDRESS`` is set."""
    return address is None and "RAY_ADDRESS" not in os.environ


def _import_path() -> str:
    """Directories beside the installation that this process imports from; workers need the same ones."""
    prefix = str(Path(sys.prefix).resolve())
    entries = [str(Path(entry or ".").resolve()) for entry in sys.path]
    standard = str(Path(os.__file__).parent)
    folders = dict.fromkeys(entry for entry in entries if Path(entry).is_dir())
    return os.pathsep.join(folder for folder in folders if not folder.startswith((prefix, standard)))


@contextmanager
def connected(address: str | None, resources: Resources) -> Iterator[dict[str, float]]:
    """Hold a connection to a Ray cluster; yields its capacity by resource name.

    Args:
        address: A running cluster (``auto`` finds the one of this machine); None starts a local one, unless
            ``RAY_ADDRESS`` is set, as it is inside ``ray job submit``.
        resources: The shape of one trial; sets the threads of the workers.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        os.environ.setdefault(_UV_ENVIRONMENT, "0")  # its workers have this one
    else:
        use_token_if_present()
        if "UV" in os.environ and _UV_ENVIRONMENT not in os.environ:
            _log.warning(
                "this process was started by uv: Ray builds an environment for each worker from this "
                "project. If nlgraft is installed on the nodes of the cluster, set %s=0",
                _UV_ENVIRONMENT,
            )
    import ray

    # Connected by the caller, e.g. a notebook: the connection is used, and left open.
    if ray.is_initialized():
        yield dict(ray.cluster_resources())
        return
    threads = {"OMP_NUM_THREADS": str(max(1, int(resources.cpus_per_worker)))}
    # Unix sockets below it must stay under 108 characters: a short name in a short place.
    directory = Path(tempfile.mkdtemp(prefix="nlg-"))
    local = LocalRay(directory, local_capacity())
    try:
        with signals_kept_from_ray():
            if address is None:
                local.start(ray, {**threads, "PYTHONPATH": _import_path()})
            else:
                _join(ray, address, threads)
        yield dict(ray.cluster_resources())
    finally:
        ray.shutdown()
        local.end()
        shutil.rmtree(directory, ignore_errors=True)


def _join(
    ray: Any,
    address: str,
    threads: Mapping[str, str],
) -> None:
    # A submitted job has its runtime environment already.
    in_job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env=None if in_job else {"env_vars": dict(threads)},
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(
            f"cannot join the Ray cluster at {address}: {_first_line(error)}. Check that it runs and can be "
            "reached from here (`ray status --address ADDRESS`); if it uses token authentication, set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH. Without --address, Ray is started on this machine"
        ) from error


def use_token_if_present() -> None:
    """Authenticate by default where a token is present, as ``ray start`` does; Ray's clients do not.

    Ray reads the setting when it is imported.
    """
    token = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if token or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
