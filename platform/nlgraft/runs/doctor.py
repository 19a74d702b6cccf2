"""``nlgraft doctor``: what a machine or cluster needs for a run, each part tried by a small check."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from nlgraft.basics.errors import NlgraftError, StudyError
from nlgraft.basics.shipped import system_names
from nlgraft.basics.wording import count, size, without_credentials
from nlgraft.execution.cluster import connected, local_capacity, local_memory_bytes, num_local_gpus
from nlgraft.execution.cluster_watch import answers
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import one_line
from nlgraft.study.data.study import Resources
from nlgraft.tracking.uri import check_uri, is_database

State = Literal["ok", "warn", "wrong"]

_PACKAGES = ("nlgraft", "torch", "transformers", "ray", "mlflow", "optuna", "obstore")
_NUM_RIVALS = 6
_CLOCK_WARN_S, _CLOCK_WRONG_S = 5.0, 300.0
_DISK_WARN_BYTES, _DISK_WRONG_BYTES = 10e9, 1e9
_RAY_PORTS = {6379: "--port", 8265: "--dashboard-port", 10001: "--ray-client-server-port"}
_NODE_S = 300.0


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        name: What was looked at.
        state: ``ok``; ``warn``, where runs go on but not as they might; ``wrong``, where some fail.
        what: What was found.
        remedy: What to do; empty if nothing.
        figures: Numbers and names, for JSON.
    """

    name: str
    state: State
    what: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def examine(storage: str, tracking_uri: str, address: str | None) -> Iterator[Check]:
    """Check this machine, or with an address the nodes of a cluster and groups of workers over them.

    Args:
        storage: The artifact store.
        tracking_uri: The MLflow tracking URI.
        address: A Ray cluster that this machine belongs to.
    """
    if address is not None:
        yield from _examine_cluster(storage, tracking_uri, address)
        return
    yield from examine_machine(storage, tracking_uri)
    yield _guarded("ports", check_ports)
    for path in system_names():
        name = path.rpartition(".")[2]
        yield _guarded(f"system {name}", partial(check_system, path))
    yield _guarded("speed", check_speed)


def examine_machine(storage: str, tracking_uri: str) -> list[Check]:
    """Check what every node of a cluster needs."""
    places = {"store": storage, "scratch": tempfile.gettempdir()}
    checks: dict[str, Callable[[], Check]] = {
        "versions": check_versions,
        "devices": check_devices,
        "precision": check_precision,
        "store": partial(check_store, storage),
        "clock": partial(check_clock, storage),
        **{f"disk, {name}": partial(check_disk, name, place) for name, place in places.items()},
        "tracking": partial(check_tracking, tracking_uri),
    }
    return [_guarded(name, check) for name, check in checks.items()]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; one that raises has found something wrong."""
    try:
        return check()
    except Exception as error:
        remedy = "" if isinstance(error, NlgraftError) else "report it with the output of `doctor --json`"
        return Check(name, "wrong", one_line(error), remedy)


def check_versions() -> Check:
    """List the versions of Python and of the packages that matter most."""
    versions = {"python": python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return Check("versions", "ok", ", ".join(map(" ".join, versions.items())), figures=versions)


def check_devices() -> Check:
    """Compare the accelerators that torch finds with those of the machine."""
    import torch

    from nlgraft.runs.device_trials import current_device, device_name

    device, capacity = current_device(), local_capacity()
    cpus = f"{count(int(capacity['CPU']), 'CPU')}, {size(local_memory_bytes())} of memory"
    if device == "cpu":
        figures = {"cpus": capacity["CPU"], "memory_bytes": local_memory_bytes(), "accelerators": 0}
        if num_gpus := num_local_gpus():
            what = f"torch {torch.__version__} finds none of {count(num_gpus, 'GPU')} of this machine; {cpus}"
            remedy = "compare `nvidia-smi` with https://pytorch.org/get-started: driver, or a torch for CPUs"
            return Check("devices", "wrong", what, remedy, figures)
        return Check("devices", "warn", f"no accelerator: everything computes on {cpus}", "", figures)
    number, name = torch.accelerator.device_count(), device_name(device)
    figures = {"cpus": capacity["CPU"], "memory_bytes": local_memory_bytes(), "accelerators": number}
    return Check("devices", "ok", f"{number} x {name}, {cpus}", figures={**figures, "name": name})


def check_precision() -> Check:
    """Measure what `precision: auto` would choose."""
    from nlgraft.runs.device_trials import current_device
    from nlgraft.training.precision import MIN_GAIN, measure_gain

    gain = measure_gain(current_device())
    choice = "bf16" if gain >= MIN_GAIN else "fp32"
    speed = f"bf16 has {gain:.2f} times the speed of fp32" if gain else "no instructions for bf16"
    return Check("precision", "ok", f"{speed}; auto is {choice}", figures={"bf16_gain": gain})


def check_store(storage: str) -> Check:
    """Let several writers compete for a key: of conditional writes one succeeds, or locks hold nobody off."""
    store = ArtifactStore.open(storage)
    created, replaced = store.compete(_NUM_RIVALS)
    figures = {"created": created, "replaced": replaced, "rivals": _NUM_RIVALS}
    if (created, replaced) == (1, 1):
        return Check("store", "ok", f"{store.name}: conditional writes hold", figures=figures)
    what = (
        f"{store.name}: of {_NUM_RIVALS} conditional writes {created} created and {replaced} replaced a key"
    )
    remedy = (
        "use a local disk, NFS or a service with conditional writes (S3, GCS, Azure, MinIO): two runs of a "
        "study would not notice each other here"
    )
    return Check("store", "wrong", what, remedy, figures)


def check_clock(storage: str) -> Check:
    """Compare the clock of the store with this machine's."""
    ahead_s = time.time() - ArtifactStore.open(storage).now()
    state: State = (
        "ok" if abs(ahead_s) < _CLOCK_WARN_S else "warn" if abs(ahead_s) < _CLOCK_WRONG_S else "wrong"
    )
    what = f"{abs(ahead_s):.1f} s {'before' if ahead_s > 0 else 'behind'} the store's clock"
    remedy = "" if state == "ok" else "set it by NTP (`timedatectl`): S3 refuses requests beyond 15 min"
    return Check("clock", state, what, remedy, {"ahead_s": ahead_s})


def check_disk(name: str, place: str) -> Check:
    """Look how much room there is where artifacts are written."""
    store = ArtifactStore.open(place)
    path = store.scratch_root
    # What is not there yet is made on the disk of the nearest directory.
    usage = shutil.disk_usage(next(parent for parent in (path, *path.parents) if parent.exists()))
    state: State = "ok"
    if usage.free < _DISK_WARN_BYTES:
        state = "wrong" if usage.free < _DISK_WRONG_BYTES else "warn"
    what = f"{size(usage.free)} free of {size(usage.total)}"
    remedy = (
        "" if state == "ok" else "free space, or choose another place; `nlgraft plan` says what is needed"
    )
    return Check(f"disk, {name}", state, what, remedy, {"free_bytes": usage.free})


def check_tracking(uri: str) -> Check:
    """Ask MLflow for an experiment."""
    public = without_credentials(uri)
    try:
        check_uri(uri)
    except StudyError as error:
        return Check("tracking", "wrong", error.problems[0].message)
    if uri.startswith("sqlite:"):
        return Check("tracking", "ok", "a SQLite file")
    parts = urlsplit(uri)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    # First, since MLflow's client tries for minutes.
    if port and parts.hostname and not answers((parts.hostname, port)):
        remedy = "start it (`mlflow server`, deploy/mlflow-compose.yaml), or give its address: --tracking-uri"
        return Check("tracking", "wrong", f"nothing answers at {public}", remedy)
    from mlflow import MlflowClient

    try:
        MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # whatever a server, a network or a database driver raises
        remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or look at the server's log"
        return Check("tracking", "wrong", f"{public}: {one_line(error)}", remedy)
    return Check("tracking", "ok", f"a {'database' if is_database(uri) else 'server'} that answers")


def check_ports() -> Check:
    """Find out if the ports of a Ray head are free; a run without an address takes free ones."""
    taken = [port for port in _RAY_PORTS if not _is_free(port)]
    if not taken:
        return Check("ports", "ok", f"{', '.join(map(str, _RAY_PORTS))} are free for a Ray head")
    options = " ".join(f"{_RAY_PORTS[port]}=PORT" for port in taken)
    remedy = f"if it is Ray, `--address auto` uses it; else `ray start --head {options}`"
    return Check("ports", "warn", f"taken: {', '.join(map(str, taken))}", remedy, {"taken": taken})


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def check_system(path: str) -> Check:
    """Train, decode and score a small trial of a system, on an accelerator as on the CPU."""
    from nlgraft.runs.device_trials import compare_devices, current_device

    device, name = current_device(), f"system {path.rpartition('.')[2]}"
    began_s = time.perf_counter()
    unequal = compare_devices(path, device)
    figures = {"device": device, "unequal": unequal, "seconds": time.perf_counter() - began_s}
    if unequal:
        listed = ", ".join(f"{metric} {value:.5g}, {other}" for metric, (value, other) in unequal.items())
        remedy = (
            "report it with the output of `doctor --json`; until then set precision: fp32, or use the CPU"
        )
        return Check(name, "wrong", f"CPU and {device} differ: {listed}", remedy, figures)
    what = "trains and decodes on the CPU" if device == "cpu" else f"losses on {device} are the CPU's"
    return Check(name, "ok", what, figures=figures)


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
    return Check("speed", "ok", what, figures=speed)


def _examine_cluster(storage: str, tracking_uri: str, address: str) -> Iterator[Check]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with connected(address, Resources()):
        versions: list[Check] = []
        nodes = [node for node in ray.nodes() if node["Alive"]]
        for node in nodes:
            here: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(examine_machine)
            place = f"node {node['NodeManagerAddress']}"
            try:
                checks = ray.get(remote.remote(storage, tracking_uri), timeout=_NODE_S)
            except Exception as error:
                remedy = "install the same nlgraft on all nodes, or submit by --address http://HEAD:8265"
                yield Check(place, "wrong", one_line(error), remedy)
                continue
            versions.append(checks[0])
            for check in checks:
                yield Check(f"{place}, {check.name}", check.state, check.what, check.remedy, check.figures)
        yield check_equal_versions(versions)
        yield _guarded("worker group", partial(_check_group, storage, nodes))


def check_equal_versions(versions: Sequence[Check]) -> Check:
    """Compare the versions of all nodes."""
    differing = sorted(
        {
            name
            for check in versions
            for name in check.figures
            if check.figures[name] != versions[0].figures.get(name)
        }
    )
    if not differing:
        return Check("equal versions", "ok", f"the same on {count(len(versions), 'node')}")
    what = f"nodes differ in {', '.join(differing)}"
    return Check("equal versions", "wrong", what, "install the same image or environment on every node")


def _check_group(storage: str, nodes: Sequence[dict[str, Any]]) -> Check:
    """Train on a group of workers, one a node or two on a single one; its losses are those of one worker."""
    from nlgraft.execution.cluster import WorkerGroup
    from nlgraft.execution.cluster_watch import Losses
    from nlgraft.execution.distributed_stages import run_on_workers
    from nlgraft.pipeline.execute import RecordingReporter
    from nlgraft.pipeline.stage import NullReporter
    from nlgraft.pipeline.trial import run_trial
    from nlgraft.runs.device_trials import DEVICE_TOLERANCE, differing, speed_trial, trial_on
    from nlgraft.study.reading.system_import import load_system

    has_gpus = all(node["Resources"].get("GPU", 0) >= 1 for node in nodes)
    num_workers = len(nodes) if len(nodes) > 1 else 2
    if len(nodes) == 1 and has_gpus and nodes[0]["Resources"]["GPU"] < num_workers:
        num_workers = 1
    resources = Resources(workers=num_workers, gpus_per_worker=float(has_gpus))
    store, folder = ArtifactStore.open(storage), f"doctor-{uuid4().hex}"
    own = ArtifactStore.open(store.child_uri(folder))
    reporter, graph = RecordingReporter(NullReporter()), speed_trial("cpu")
    distribute = partial(
        run_on_workers,
        place=own.place,
        group=WorkerGroup(resources, own.child_uri("ray")),
        reporter=reporter,
        losses=Losses(0),
        report_waiting=lambda is_waiting: None,
    )
    began_s = time.perf_counter()
    try:
        options: dict[str, Any] = {"reporter": reporter, "config": {}, "is_waiting": True}
        record = run_trial(graph, own, distribute=distribute, **options)
    finally:
        store.remove(folder)
    seconds = time.perf_counter() - began_s
    with tempfile.TemporaryDirectory() as alone:
        expected = trial_on(graph, Path(alone)).metrics
    metrics = load_system("trainables.prlm_fusion").metrics
    unequal = differing(metrics, expected, record.metrics, DEVICE_TOLERANCE, only_losses=True)
    what = (
        f"{count(num_workers, 'worker')} on {count(len(nodes), 'node')}{', NCCL' if has_gpus else ', gloo'}"
    )
    figures = {"workers": num_workers, "seconds": seconds, "unequal": unequal}
    if unequal:
        remedy = "report it with the output of `doctor --json`; until then, resources: {workers: 1}"
        return Check("worker group", "wrong", f"{what}: losses are not those of one", remedy, figures)
    return Check("worker group", "ok", f"{what}: losses are those of one", figures=figures)
