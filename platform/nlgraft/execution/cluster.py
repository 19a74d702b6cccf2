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

from nlgraft.errors import CapacityError, NlgraftError
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.capacity import capacity_problems, max_concurrent

# The process that drives a trial of several workers must hold no CPU, or drivers would take the CPUs that
# their own workers wait for. Every Ray cluster has this resource, on its head only.
HEAD_RESOURCE = "node:__internal_head__"
DRIVER_SHARE = 0.001

_NUM_STARTS = 3

_log = logging.getLogger(__name__)

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # Tune's own tables would mix with ours and with --json
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "600",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


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
    own = [entry for entry in entries if Path(entry).is_dir() and not entry.startswith(prefix)]
    standard = str(Path(os.__file__).parent)
    return os.pathsep.join(dict.fromkeys(entry for entry in own if not entry.startswith(standard)))


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
    import ray

    if ray.is_initialized():
        yield dict(ray.cluster_resources())
        return
    address = address or os.environ.get("RAY_ADDRESS")
    threads = {"OMP_NUM_THREADS": str(max(1, int(resources.cpus_per_worker)))}
    directory: Path | None = None
    if address is None:
        # Unix sockets below it must stay under 108 characters: a short name in a short place.
        directory = Path(tempfile.mkdtemp(prefix="nlg-"))
        _start_local(ray, directory, threads)
    else:
        in_job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env=None if in_job else {"env_vars": threads},
        )
    try:
        yield dict(ray.cluster_resources())
    finally:
        ray.shutdown()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _start_local(ray: Any, directory: Path, threads: Mapping[str, str]) -> None:
    """Start a cluster of this machine alone.

    Ray gives its own processes 30 s to start, too little on a busy machine: hence several attempts.
    """
    capacity = local_capacity()
    for attempt in range(1, _NUM_STARTS + 1):
        try:
            ray.init(
                address="local",
                num_cpus=int(capacity["CPU"]),
                num_gpus=int(capacity["GPU"]),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(directory),
                runtime_env={"env_vars": {**threads, "PYTHONPATH": _import_path()}},
            )
        except Exception as error:
            ray.shutdown()
            if attempt == _NUM_STARTS:
                raise NlgraftError(f"Ray did not start on this machine: {error}") from error
            _log.warning("Ray did not start, attempt %d of %d: %s", attempt, _NUM_STARTS, error)
        else:
            return
