"""``nlgraft doctor``: what a machine or cluster needs for a run, tried by checks and by small trials."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

import torch

from nlgraft.basics.errors import StoreError
from nlgraft.basics.shipped import studies, system_names
from nlgraft.basics.strict_config import StrictConfig
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
from nlgraft.nn.modes import is_accelerator
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.stage import NullReporter, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import RecordingReporter, TrialRecord, one_line, run_trial
from nlgraft.study.data import paths
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Resources
from nlgraft.study.public import Study
from nlgraft.study.reading.place_rules import uri_fault
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.study.reading.system_import import load_system
from nlgraft.training.precision import has_bf16

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


def examine(storage: str, tracking_uri: str, address: str | None) -> Iterator[Check]:
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
    from nlgraft.runs.doctor import systems_with_trials  # loads torch

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
        return Check("wrong", one_line(error), "" if isinstance(error, StoreError) else _REPORT_IT, name=name)


def check_versions() -> Check:
    """List the versions of Python and of the packages that matter most."""
    versions = {"python": python_version(), **{package: version(package) for package in _PACKAGES}}
    return Check("ok", ", ".join(map(" ".join, versions.items())), figures=versions)


def check_devices() -> Check:
    """Compare the accelerators that torch finds with those of the machine."""
    import torch

    from nlgraft.runs.doctor import current_device, device_name

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
    from nlgraft.runs.doctor import current_device
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
    present = [next(path for path in (folder, *folder.parents) if path.exists()) for folder in folders]
    usage = min(map(shutil.disk_usage, present), key=lambda usage: usage.free)
    what = f"{size(usage.free)} free of {size(usage.total)}"
    remedy = "free space, or choose another place; `nlgraft plan` says what a study needs"
    return _graded(usage.free, _DISK_BYTES, what, remedy, {"free_bytes": usage.free})


def _graded(value: float, least: Sequence[float], what: str, remedy: str, figures: dict[str, Any]) -> Check:
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
    public, port = without_credentials(uri), parts.port or {"http": 80, "https": 443}.get(parts.scheme)
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
    from nlgraft.runs.doctor import current_device, small_trial, trial_in, unequal_losses

    device, began_s = current_device(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if device == "cpu":
            trial_in(folder, small_trial(path))
            unequal = {}
        else:
            unequal = unequal_losses(path, folder, device=device)
    return _compared(unequal, f"trains and decodes on {device}", time.perf_counter() - began_s)


def _compared(unequal: dict[str, Any], what: str, seconds: float) -> Check:
    figures = {"unequal": unequal, "seconds": round(seconds, 1)}
    if not unequal:
        return Check("ok", what, figures=figures)
    return Check("wrong", f"{what}, but losses are not the CPU's: {', '.join(unequal)}", _REPORT_IT, figures)


def check_speed() -> Check:
    """Time a training and its decoding."""
    from nlgraft.runs.doctor import current_device, measure_speed

    speed = measure_speed(current_device())
    what = (
        f"{speed['train_tokens_per_s']:,.0f} tokens/s trained, {speed['decode_tokens_per_s']:,.0f} decoded, "
        f"{speed['parameters'] / 1e6:.1f} million parameters"
    )
    what += f", {size(speed['memory_bytes'])}" if "memory_bytes" in speed else ""
    what += f", MFU {speed['mfu']:.0%}" if "mfu" in speed else ""
    return Check("ok", what, figures=speed)


def _examine_cluster(storage: str, tracking_uri: str, address: str) -> Iterator[Check]:
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
    """Train on a group of workers, one a node or two on a single one; its losses are those of one worker."""
    from nlgraft.execution.distributed_stages import run_on_workers
    from nlgraft.runs.doctor import SPEED_SYSTEM, unequal_losses

    num_gpus = int(sum(node["Resources"].get("GPU", 0) for node in nodes))
    num_workers = min(max(2, len(nodes)), num_gpus or len(nodes) + 1)
    resources = Resources(workers=num_workers, gpus_per_worker=min(1, num_gpus))
    store, folder, began_s = ArtifactStore.open(storage), f"doctor-{uuid4().hex}", time.perf_counter()
    group_store = ArtifactStore.open(store.child_uri(folder))
    distribute = partial(
        run_on_workers,
        place=group_store.place,
        group=WorkerGroup(resources, group_store.child_uri("ray")),
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


# Small trials on a device against the same on the CPU, and its speed.


DEVICE_TOLERANCE = 1e-3
"""Relative difference of losses between a CPU and a GPU, whose kernels sum in other orders."""
SPEED_SYSTEM = "trainables.prlm_fusion"

_SEED = 1
_LIMITS = {"max_steps": 3, "warmup_steps": 1, "eval_every_steps": 2, "epochs": 1}
_TEXT_LIMITS = {"train": 250, "dev": 8, "test": 8}
_SPEED_STEPS = 40
# On a CPU and on a GPU, there Vaswani et al.'s base model.
_SPEED_MODEL = {False: ("tiny", 128), True: ("base", 512)}
_SPEED_SENTENCES = {False: 64, True: 1024}
_SPEED_LINES = {False: 500, True: 10_000}
_SPEED_MIN_LENGTH = 16  # a model of so few steps would end each sentence at once
_FLOP = 6
_PEAK_TFLOPS = {
    "B200": 2250, "H200": 989, "H100": 989, "MI300X": 1307, "A100": 312, "L40S": 362, "A10": 125, "L4": 121,
    "T4": 65, "V100": 125, "RTX 4090": 165,
}  # fmt: skip
"""Dense operations in 16 bits, 1e12 a second, of the makers' data sheets, by a part of the device's name."""


def current_device() -> str:
    """Return the first accelerator, ``cuda:0`` for example, or ``cpu``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else f"{accelerator.type}:0"


def trial_in(place: str | Path, graph: StageGraph, **options: Any) -> TrialRecord:
    """Run a trial in a store at a place, with options of `run_trial`."""
    defaults = {"reporter": NullReporter(), "config": {}, "is_waiting": True}
    return run_trial(graph, ArtifactStore.open(place), **{**defaults, **options})


def differing(
    system_path: str,
    expected: Mapping[str, float],
    actual: Mapping[str, float],
    tolerance: float = DEVICE_TOLERANCE,
    *,
    only_losses: bool = True,
) -> dict[str, tuple[float, float | None]]:
    """Select the metrics of two trials, times left out, that differ by more than a relative tolerance.

    Args:
        only_losses: True where a rounding may change a word, and with it every score of text.
    """
    metrics = load_system(system_path).metrics
    return {
        name: (value, actual.get(name))
        for name, value in expected.items()
        if not metrics[name].is_time and (not only_losses or "loss" in name)
        if not math.isclose(actual.get(name, math.nan), value, rel_tol=tolerance, abs_tol=1e-7)
    }


def systems_with_trials() -> dict[str, Path]:
    """Map the systems that come with a small study to it; a script chooses its device itself."""
    shipped = studies()
    small = {
        path: shipped.get(f"{name}/demo") or shipped.get(f"{name}/search")
        for path in system_names()
        for name in [path.rpartition(".")[2]]
    }
    return {path: study for path, study in small.items() if study is not None}


def small_trial(system_path: str, cell: int = -1, changes: Mapping[str, Any] | None = None) -> StageGraph:
    """Build a trial of seconds: a cell of a study that comes with the system, with few steps and little text.

    Args:
        system_path: ``trainables.NAME``.
        cell: Number of the cell.
        changes: Further settings, by dotted path.
    """
    study = Study.from_yaml(systems_with_trials()[system_path])
    values = json.loads(json.dumps(resolve_cell(study, cells(study)[cell]).document))
    for path, value in list(dotted(values)):
        limits = _TEXT_LIMITS if path.startswith("data.") else _LIMITS
        limit = limits.get(path.rpartition(".")[2])
        if limit is not None and isinstance(value, int):
            paths.put(values, path, min(value, limit))
    for path, value in (changes or {}).items():
        paths.put(values, path, value)
    system = load_system(system_path)
    return system.stage_graph(without_dropout(system.validate(values)), seed=_SEED, splits=("dev", "test"))


def without_dropout(config: StrictConfig) -> StrictConfig:
    """Set the dropout of all modules to 0: devices, and workers of a group, draw other numbers.

    Tokenizers draw on the CPU, so theirs stays.
    """

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, StrictConfig) and "tokenizer" not in name:
            return without_dropout(value)
        if isinstance(value, dict):
            return {key: changed(key, entry) for key, entry in value.items()}
        return 0.0 if name.endswith("dropout") and isinstance(value, float) else value

    return config.model_copy(update={name: changed(name, value) for name, value in config})


def unequal_losses(system_path: str, place: str | Path, **options: Any) -> dict[str, Any]:
    """Run a small trial on the CPU, and in a store at a place with options; return the losses that differ."""
    graph = small_trial(system_path)
    with tempfile.TemporaryDirectory() as folder:
        expected = trial_in(folder, graph).metrics
    return differing(system_path, expected, trial_in(place, graph, **options).metrics)


def measure_speed(device: str) -> dict[str, float]:
    """Time training and decoding.

    Returns:
        Target tokens per second of training, without its first half, and of decoding; parameters; of an
        accelerator bytes of memory at most, and the share of its peak speed if that is known (MFU: 6
        operations per parameter and token, as in nanoGPT and Kaplan et al. 2020).
    """
    is_gpu = is_accelerator(device)
    preset, width = _SPEED_MODEL[is_gpu]
    changes = {
        "model": {"preset": preset, "d_model": width, "ffn_dim": 4 * width},
        "data.downstream.train": _SPEED_LINES[is_gpu],
        "data.downstream.test": _SPEED_SENTENCES[is_gpu],
        "decode.min_length": _SPEED_MIN_LENGTH,
        "train.max_steps": _SPEED_STEPS,
        "train.eval_every_steps": _SPEED_STEPS // 2,
        "train.batch_sentences": _SPEED_SENTENCES[is_gpu],
        "train.precision": "bf16" if is_gpu and has_bf16(device) else "fp32",
    }
    reporter = RecordingReporter(NullReporter())
    with tempfile.TemporaryDirectory() as folder:
        graph = small_trial(SPEED_SYSTEM, 0, changes)
        metrics = trial_in(folder, graph, device=device, reporter=reporter).metrics
    (training,) = [curves for curves in reporter.curves.values() if "train/tokens_per_s" in curves]
    speed = {
        "train_tokens_per_s": training["train/tokens_per_s"][-1][1],
        "decode_tokens_per_s": metrics["test/tokens_per_s"],
        "parameters": metrics["parameters/total"],
    }
    if is_gpu:
        memory = getattr(torch.get_device_module(torch.device(device)), "max_memory_allocated", None)
        speed |= {} if memory is None else {"memory_bytes": memory()}
        if (peak := peak_flops(device)) is not None:
            speed["mfu"] = _FLOP * speed["parameters"] * speed["train_tokens_per_s"] / peak
    return speed


def peak_flops(device: str) -> float | None:
    """Look up a device's dense operations in 16 bits, per second; None if it is not listed."""
    peaks = (peak for name, peak in _PEAK_TFLOPS.items() if name in device_name(device))
    return next((peak * 1e12 for peak in peaks), None)


def device_name(device: str) -> str:
    """Return the maker's name of an accelerator, or torch's where it tells none."""
    module = torch.get_device_module(torch.device(device))
    return module.get_device_name(0) if hasattr(module, "get_device_name") else device
