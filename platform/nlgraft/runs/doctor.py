"""``nlgraft doctor``: what a machine or cluster needs for a run, each part tried by a small check."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from nlgraft.basics.errors import NlgraftError, StoreError
from nlgraft.basics.wording import count, size, without_credentials
from nlgraft.execution.cluster import (
    LOOPBACK,
    WorkerGroup,
    connected,
    local_capacity,
    local_memory_bytes,
    num_local_gpus,
)
from nlgraft.execution.cluster_watch import Losses, answers
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import RecordingReporter, one_line
from nlgraft.study.data.study import Resources
from nlgraft.study.reading.place_rules import nearest_existing, uri_fault

State = Literal["ok", "warn", "wrong"]

_PACKAGES = (
    "nlgraft", "torch", "transformers", "tokenizers", "sentencepiece", "ray", "mlflow", "optuna", "obstore",
)  # fmt: skip
_NUM_RIVALS = 6
_CLOCK_S = (5.0, 300.0)
_DISK_BYTES = (10e9, 1e9)
"""Limits from which a check warns, and from which something is wrong."""
_RAY_PORTS = {6379: "--port", 8265: "--dashboard-port", 10001: "--ray-client-server-port"}
_NODE_S = 300.0
_REPORT_IT = "report it with the output of `nlgraft doctor --json`"


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        state: ``ok``; ``warn``, where runs go on but not as they might; ``wrong``, where some fail.
        what: What was found.
        remedy: What to do; empty if nothing.
        figures: Numbers and names, for JSON.
        name: What was looked at.
    """

    state: State
    what: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    name: str = ""


def examine(
    storage: str,
    tracking_uri: str,
    address: str | None,
) -> Iterator[Check]:
    """Check this machine, or with an address the nodes of a cluster and a group of workers over them.

    Args:
        storage: The artifact store.
        tracking_uri: The MLflow tracking URI.
        address: A Ray cluster that this machine belongs to.
    """
    if address is not None:
        yield from _examine_cluster(storage, tracking_uri, address)
        return
    yield from examine_node(storage, tracking_uri)
    yield run_check("ports", check_ports)
    from nlgraft.runs.device_trials import systems_with_trials  # loads torch

    for path in systems_with_trials():
        yield run_check(path.rpartition(".")[2], partial(check_system, path))
    yield run_check("speed", check_speed)


def examine_node(storage: str, tracking_uri: str) -> list[Check]:
    """Check what every machine needs that computes trials."""
    checks = {
        "versions": check_versions,
        "devices": check_devices,
        "precision": check_precision,
        "store": partial(check_store, storage),
        "clock": partial(check_clock, storage),
        "disk": partial(check_disk, storage),
        "tracking": partial(check_tracking, tracking_uri),
    }
    return [run_check(name, check) for name, check in checks.items()]


def run_check(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; one that raises has found something wrong."""
    try:
        return replace(check(), name=name)
    except Exception as error:  # whatever a driver, a network or a file system raises
        # Ours are written for users, all their lines.
        what = " ".join(str(error).split()) if isinstance(error, NlgraftError) else one_line(error)
        return Check("wrong", what, "" if isinstance(error, StoreError) else _REPORT_IT, name=name)


def check_versions() -> Check:
    """List the versions of Python and of the packages that matter most."""
    versions = {"python": python_version(), **{package: version(package) for package in _PACKAGES}}
    return Check("ok", ", ".join(map(" ".join, versions.items())), figures=versions)


def check_devices() -> Check:
    """Compare the accelerators that torch finds with those of the machine."""
    import torch

    from nlgraft.runs.device_trials import current_device, device_name

    device, num_cpus, memory = current_device(), int(local_capacity()["CPU"]), local_memory_bytes()
    machine = f"{count(num_cpus, 'CPU')}, {size(memory)} of memory"
    number = 0 if device == "cpu" else torch.accelerator.device_count()
    figures = {"cpus": num_cpus, "memory_bytes": memory, "device": device, "accelerators": number}
    if number:
        return Check("ok", f"{number} x {device_name(device)}, {machine}", figures=figures)
    if num_gpus := num_local_gpus():
        what = f"torch {torch.__version__} finds none of {count(num_gpus, 'GPU')}; {machine}"
        remedy = (
            "look at `nvidia-smi`, and install the torch for its driver (https://pytorch.org/get-started)"
        )
        return Check("wrong", what, remedy, figures)
    return Check("warn", f"no accelerator: everything computes on {machine}", figures=figures)


def check_precision() -> Check:
    """Measure what ``precision: auto`` would choose."""
    from nlgraft.runs.device_trials import current_device
    from nlgraft.training.precision import MIN_GAIN, measure_gain

    gain = measure_gain(current_device())
    speed = f"bf16 has {gain:.2f} times the speed of fp32" if gain else "no instructions for bf16"
    choice = "bf16" if gain >= MIN_GAIN else "fp32"
    return Check("ok", f"{speed}; precision: auto is {choice}", figures={"bf16_gain": gain})


def check_store(storage: str) -> Check:
    """Let several writers compete for a key: unless one alone succeeds, locks hold nobody off."""
    created, replaced = ArtifactStore.open(storage).compete(_NUM_RIVALS)
    figures = {"created": created, "replaced": replaced, "rivals": _NUM_RIVALS}
    if (created, replaced) == (1, 1):
        return Check("ok", "conditional writes hold", figures=figures)
    what = f"of {_NUM_RIVALS} conditional writes of a key {created} created and {replaced} replaced it, not 1"
    remedy = "two runs would not notice each other: use a local disk, NFS, or a service with such writes (S3)"
    return Check("wrong", what, remedy, figures)


def check_clock(storage: str) -> Check:
    """Compare the clock of the store with this machine's."""
    behind_s = ArtifactStore.open(storage).now() - time.time()
    remedy = "set it by NTP: records have wrong times, and S3 refuses requests beyond 15 minutes"
    what = f"{abs(behind_s):.1f} s {'behind' if behind_s > 0 else 'before'} the store's"
    return _graded(-abs(behind_s), [-limit for limit in _CLOCK_S], what, remedy, {"behind_s": behind_s})


def check_disk(storage: str) -> Check:
    """Look at the fullest of the disks on which artifacts and temporary files are written."""
    folders = [ArtifactStore.open(storage).scratch_root, Path(tempfile.gettempdir())]
    # What is not there yet is made on the disk of the nearest directory.
    present = [nearest_existing(folder) for folder in folders]
    usage = min(map(shutil.disk_usage, present), key=lambda usage: usage.free)
    what = f"{size(usage.free)} free of {size(usage.total)}"
    remedy = "free space, or choose another place; `nlgraft plan` says what a study needs"
    return _graded(usage.free, _DISK_BYTES, what, remedy, {"free_bytes": usage.free})


def _graded(
    value: float,
    least: Sequence[float],
    what: str,
    remedy: str,
    figures: dict[str, Any],
) -> Check:
    """Judge a value by the least that is well and the least that is not wrong."""
    if value >= least[0]:
        return Check("ok", what, figures=figures)
    return Check("warn" if value >= least[1] else "wrong", what, remedy, figures)


def check_tracking(uri: str) -> Check:
    """Ask MLflow for an experiment; no database is created."""
    if fault := uri_fault(uri):
        return Check("wrong", fault)
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":
        return Check("ok", "a SQLite file")
    public = without_credentials(uri)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    # First, since MLflow's client tries for minutes.
    if port and parts.hostname and not answers((parts.hostname, port)):
        remedy = "start it (`mlflow server`, deploy/mlflow-compose.yaml), or give its address: --tracking-uri"
        return Check("wrong", f"nothing answers at {public}", remedy)
    from mlflow import MlflowClient

    try:
        MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # whatever a server, a network or a database driver raises
        remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or look at the server's log"
        return Check("wrong", f"{public}: {one_line(error)}", remedy)
    return Check("ok", f"{parts.scheme}, answers")


def check_ports() -> Check:
    """Find out if the ports of a Ray head are free; a run without an address takes others."""
    taken = [port for port in _RAY_PORTS if answers((LOOPBACK, port))]
    if not taken:
        return Check("ok", f"{', '.join(map(str, _RAY_PORTS))} are free for a Ray head")
    options = " ".join(f"{_RAY_PORTS[port]}=PORT" for port in taken)
    remedy = f"if that is Ray, `--address auto` uses it; else `ray start --head {options}`"
    return Check("warn", f"taken: {', '.join(map(str, taken))}", remedy, {"taken": taken})


def check_system(path: str) -> Check:
    """Train, decode and score a small trial of a system, on an accelerator as on the CPU."""
    from nlgraft.runs.device_trials import current_device, small_trial, trial_in, unequal_losses

    device, began_s = current_device(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if device == "cpu":
            trial_in(folder, small_trial(path))
            unequal = {}
        else:
            unequal = unequal_losses(path, folder, device=device)
    return _compared(unequal, f"trains and decodes on {device}", time.perf_counter() - began_s)


def _compared(
    unequal: dict[str, Any],
    what: str,
    seconds: float,
) -> Check:
    figures = {"unequal": unequal, "seconds": round(seconds, 1)}
    if not unequal:
        return Check("ok", what, figures=figures)
    return Check("wrong", f"{what}, but losses are not the CPU's: {', '.join(unequal)}", _REPORT_IT, figures)


def check_speed() -> Check:
    """Time a training and its decoding."""
    from nlgraft.runs.device_trials import current_device, measure_speed

    speed = measure_speed(current_device())
    what = (
        f"{speed['train_tokens_per_s']:,.0f} tokens/s trained, {speed['decode_tokens_per_s']:,.0f} decoded, "
        f"{speed['parameters'] / 1e6:.1f} million parameters"
    )
    what += f", {size(speed['memory_bytes'])}" if "memory_bytes" in speed else ""
    what += f", MFU {speed['mfu']:.0%}" if "mfu" in speed else ""
    return Check("ok", what, figures=speed)


def _examine_cluster(
    storage: str,
    tracking_uri: str,
    address: str,
) -> Iterator[Check]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with connected(address, Resources()):
        nodes = [node for node in ray.nodes() if node["Alive"]]
        versions = set()
        for node in nodes:
            here: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(examine_node)
            try:
                checks = ray.get(remote.remote(storage, tracking_uri), timeout=_NODE_S)
            except Exception as error:  # of Ray, or of a node that lacks a package
                checks = [Check("wrong", one_line(error), "install nlgraft on every node", name="python")]
            versions.add(checks[0].what)
            for check in checks:
                yield replace(check, name=f"{node['NodeManagerAddress']} {check.name}")
        yield check_equal_versions(versions)
        yield run_check("worker group", partial(_check_group, storage, nodes))


def check_equal_versions(versions: set[str]) -> Check:
    """Compare the versions of all nodes."""
    if len(versions) == 1:
        return Check("ok", "the same on all nodes", name="equal versions")
    remedy = "install the same image or environment on every node"
    return Check("wrong", f"nodes differ: {' / '.join(sorted(versions))}", remedy, name="equal versions")


def _check_group(storage: str, nodes: Sequence[dict[str, Any]]) -> Check:
    """Train on a group: its losses are those of one worker.

    Every GPU has a worker; without GPUs every node, or a single one two.
    """
    from nlgraft.execution.distributed_stages import run_on_workers
    from nlgraft.runs.device_trials import SPEED_SYSTEM, unequal_losses

    num_gpus = int(sum(node["Resources"].get("GPU", 0) for node in nodes))
    num_workers = num_gpus or max(2, len(nodes))
    resources = Resources(workers=num_workers, gpus_per_worker=min(1, num_gpus))
    store, folder, began_s = ArtifactStore.open(storage), f"doctor-{uuid4().hex}", time.perf_counter()
    group_store = ArtifactStore.open(store.child_uri(folder))
    distribute = partial(
        run_on_workers,
        place=group_store.place,
        group=WorkerGroup(resources, group_store.child_uri("ray"), is_spread=True),
        reporter=RecordingReporter(NullReporter()),
        losses=Losses(0),
        report_waiting=lambda is_waiting: None,
    )
    try:
        unequal = unequal_losses(SPEED_SYSTEM, group_store.uri, distribute=distribute)
    finally:
        store.remove(folder)
    what = f"{count(num_workers, 'worker')} train by {'NCCL' if num_gpus else 'gloo'}"
    return _compared(unequal, what, time.perf_counter() - began_s)
