"""The Ray cluster that a sweep runs on, its capacity, and the refusal of trials that can never fit."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import CapacityError, ClusterError
from nlgraft.execution.interruption import signals_kept_from_ray
from nlgraft.execution.local_ray import MANY_MACHINES, LocalRay
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.capacity import capacity_problems, max_concurrent

# The process that drives a trial of several workers must hold no CPU, or drivers would take the CPUs that
# their own workers wait for. Every Ray cluster has this resource, on its head only.
HEAD_RESOURCE = "node:__internal_head__"
DRIVER_SHARE = 0.001

# Under `uv run` Ray builds an environment for each worker; read when ray is imported.
_UV_ENVIRONMENT = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"

_log = logging.getLogger(__name__)

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
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    listing = Path("/proc/driver/nvidia/gpus")
    return len(list(listing.iterdir())) if listing.is_dir() else 0


def local_capacity() -> dict[str, float]:
    """Return the capacity of a Ray cluster started on this machine, ``{"CPU": ..., "GPU": ...}``.

    CPUs are those that this process may use.
    """
    return {"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(num_local_gpus())}


def local_memory_bytes() -> float:
    """Return the size of this machine's memory."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def check_fit(resources: Resources, capacity: Mapping[str, float], where: str) -> int:
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
    folders = [entry for entry in entries if Path(entry).is_dir() and not entry.startswith(prefix)]
    standard = str(Path(os.__file__).parent)
    return os.pathsep.join(dict.fromkeys(entry for entry in folders if not entry.startswith(standard)))


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


def _join(ray: Any, address: str, threads: Mapping[str, str]) -> None:
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
