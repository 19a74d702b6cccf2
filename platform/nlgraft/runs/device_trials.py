"""Small trials that show if a device computes what a CPU computes, and how fast it is."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from nlgraft.basics.shipped import studies
from nlgraft.nn.modes import is_accelerator
from nlgraft.pipeline.execute import RecordingReporter
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.stage import NullReporter, Reporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord, run_trial
from nlgraft.study.data import paths
from nlgraft.study.data.design import cells
from nlgraft.study.data.system import Metric
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.study.reading.system_import import load_system
from nlgraft.training.precision import has_bf16

DEVICE_TOLERANCE = 1e-3
"""Relative difference of losses between a CPU and a GPU, whose kernels sum in other orders."""

_SEED = 1
_LIMITS = {"max_steps": 3, "warmup_steps": 1, "eval_every_steps": 2, "epochs": 1}
_TEXT_LIMITS = {"train": 250, "dev": 8, "test": 8}

_SPEED_SYSTEM = "trainables.prlm_fusion"
_SPEED_STEPS = 40
_SPEED_MODEL: dict[bool, dict[str, Any]] = {
    False: {"preset": "tiny", "d_model": 128, "ffn_dim": 512},
    True: {"preset": "base", "d_model": 512, "ffn_dim": 2048},
}
"""Model of the measurement on a CPU and on a GPU, the latter Vaswani et al.'s base model."""
_SPEED_SENTENCES = {False: 64, True: 1024}
_FLOP = 6
_PEAK_TFLOPS = {
    "B200": 2250.0, "H200": 989.0, "H100": 989.0, "MI300X": 1307.0, "A100": 312.0, "L40S": 362.0,
    "A10": 125.0, "L4": 121.0, "T4": 65.0, "V100": 125.0, "RTX 4090": 165.0,
}  # fmt: skip
"""Dense operations in 16 bits, 1e12 a second, of the makers' data sheets, by a part of the device's name."""


def current_device() -> str:
    """Return the first accelerator, ``cuda:0`` for example, or ``cpu``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else f"{accelerator.type}:0"


def trial_on(
    graph: StageGraph,
    folder: Path,
    device: str = "cpu",
    reporter: Reporter | None = None,
    distribute: Callable[[Stage], None] | None = None,
) -> TrialRecord:
    """Run a trial in a store of the device's own below a folder."""
    store = ArtifactStore.open(folder / device.partition(":")[0])
    reporter = reporter or NullReporter()
    return run_trial(
        graph, store, reporter=reporter, config={}, is_waiting=True, device=device, distribute=distribute
    )


def differing(
    metrics: Mapping[str, Metric],
    expected: Mapping[str, float],
    actual: Mapping[str, float],
    tolerance: float,
    *,
    only_losses: bool,
) -> dict[str, tuple[float, float | None]]:
    """Select the metrics of two trials, times left out, that differ by more than a relative tolerance.

    Args:
        only_losses: True where a rounding may change a word, and with it every score of text.
    """
    return {
        name: (value, actual.get(name))
        for name, value in expected.items()
        if not metrics[name].is_time and (not only_losses or "loss" in name)
        if not math.isclose(actual.get(name, math.nan), value, rel_tol=tolerance, abs_tol=1e-7)
    }


def small_trial(system_path: str, cell: int = -1, changes: Mapping[str, Any] | None = None) -> StageGraph:
    """Build a trial of seconds: a cell of a study that comes with the system, with few steps and little text.

    Args:
        system_path: ``trainables.NAME``.
        cell: Number of the cell.
        changes: Further settings, by dotted path.
    """
    name = system_path.rpartition(".")[2]
    shipped = studies()
    study = Study.from_yaml(shipped.get(f"{name}/demo") or shipped[f"{name}/search"])
    values = json.loads(json.dumps(resolve_cell(study, cells(study)[cell]).document))
    for path, value in _reduced(values):
        paths.put(values, path, value)
    for path, value in (changes or {}).items():
        paths.put(values, path, value)
    system = load_system(system_path)
    return system.stage_graph(system.validate(values, Path.cwd()), seed=_SEED, splits=("dev", "test"))


def _reduced(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for path, value in list(dotted(values)):
        limits = _TEXT_LIMITS if path.startswith("data.") else _LIMITS
        limit = limits.get(path.rpartition(".")[2])
        if limit is not None and isinstance(value, int) and value > limit:
            yield path, limit


def compare_devices(system_path: str, device: str) -> dict[str, tuple[float, float | None]]:
    """Run a small trial of a system on the CPU and, if it is another, on a device; return what differs."""
    graph = small_trial(system_path)
    with tempfile.TemporaryDirectory() as folder:
        expected = trial_on(graph, Path(folder)).metrics
        if not is_accelerator(device):
            return {}
        actual = trial_on(graph, Path(folder), device).metrics
    metrics = load_system(system_path).metrics
    return differing(metrics, expected, actual, DEVICE_TOLERANCE, only_losses=True)


def speed_trial(device: str) -> StageGraph:
    """Build the trial whose training and decoding are timed."""
    is_gpu = is_accelerator(device)
    train = {
        "max_steps": _SPEED_STEPS,
        "eval_every_steps": _SPEED_STEPS // 2,
        "batch_sentences": _SPEED_SENTENCES[is_gpu],
        "precision": "bf16" if is_gpu and has_bf16(device) else "fp32",
    }
    changes = {f"train.{name}": value for name, value in train.items()}
    text = {"data.downstream.train": 10_000 if is_gpu else 500, "data.downstream.test": 500 if is_gpu else 20}
    return small_trial(_SPEED_SYSTEM, 0, {**changes, **text, "model": _SPEED_MODEL[is_gpu]})


def measure_speed(device: str) -> dict[str, float]:
    """Time training and decoding.

    Returns:
        Target tokens per second of training, without its first half, and of decoding; parameters; of an
        accelerator bytes of memory at most, and the share of its peak speed if that is known (MFU: 6
        operations per parameter and token, as in nanoGPT and Kaplan et al. 2020).
    """
    reporter = RecordingReporter(NullReporter())
    with tempfile.TemporaryDirectory() as folder:
        metrics = trial_on(speed_trial(device), Path(folder), device, reporter).metrics
    curves = next(curves for curves in reporter.curves.values() if "train/tokens_per_s" in curves)
    tokens_per_s, num_parameters = curves["train/tokens_per_s"][-1][1], metrics["parameters/total"]
    speed = {
        "train_tokens_per_s": tokens_per_s,
        "decode_tokens_per_s": metrics["test/tokens_per_s"],
        "parameters": num_parameters,
    }
    if is_accelerator(device):
        module = torch.get_device_module(torch.device(device))
        if hasattr(module, "max_memory_allocated"):
            speed["memory_bytes"] = float(module.max_memory_allocated())
        peak = next((peak for name, peak in _PEAK_TFLOPS.items() if name in device_name(device)), None)
        if peak is not None:
            speed["mfu"] = _FLOP * num_parameters * tokens_per_s / (peak * 1e12)
    return speed


def device_name(device: str) -> str:
    """Return the maker's name of an accelerator, or torch's where it tells none."""
    module = torch.get_device_module(torch.device(device))
    return module.get_device_name(0) if hasattr(module, "get_device_name") else device
