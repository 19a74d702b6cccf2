"""Small trials that show if a device computes what a CPU computes, and how fast it is."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from nlgraft.basics.shipped import studies, system_names
from nlgraft.nn.modes import is_accelerator
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.stage import NullReporter, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import RecordingReporter, TrialRecord, run_trial
from nlgraft.study.data import paths
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.study.reading.system_import import load_system
from nlgraft.training.precision import has_bf16

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


def trial_in(
    place: str | Path,
    graph: StageGraph,
    **options: Any,
) -> TrialRecord:
    """Run a trial in a store at a place, with options of `run_trial`."""
    defaults = {"reporter": NullReporter(), "config": {}, "is_waiting": True}
    return run_trial(graph, ArtifactStore.open(place), **(defaults | options))


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


def small_trial(
    system_path: str,
    cell: int = -1,
    changes: Mapping[str, Any] | None = None,
) -> StageGraph:
    """Build a trial of seconds: a cell of a study that comes with the system, with few steps and little text.

    Args:
        system_path: ``trainables.NAME``.
        cell: Number of the cell.
        changes: Further settings, by dotted path.
    """
    study = Study.from_yaml(systems_with_trials()[system_path])
    document = resolve_cell(study, cells(study)[cell]).document
    values = json.loads(json.dumps(document))
    for path, value in list(dotted(values)):
        limits = _TEXT_LIMITS if path.startswith("data.") else _LIMITS
        limit = limits.get(path.rpartition(".")[2])
        if limit is not None and isinstance(value, int):
            paths.put(values, path, min(value, limit))
    for path, value in (changes or {}).items():
        paths.put(values, path, value)
    system = load_system(system_path)
    config = without_dropout(system.validate(values))
    return system.stage_graph(config, seed=_SEED, splits=("dev", "test"))


def without_dropout(config: BaseModel) -> BaseModel:
    """Set the dropout of all modules to 0: devices, and workers of a group, draw other numbers.

    Tokenizers draw on the CPU, so theirs stays.
    """

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, BaseModel) and "tokenizer" not in name:
            return without_dropout(value)
        if isinstance(value, dict):
            return {key: changed(key, entry) for key, entry in value.items()}
        if name.endswith("dropout") and isinstance(value, float):
            return 0.0
        return value

    return config.model_copy(update={name: changed(name, value) for name, value in config})


def unequal_losses(
    system_path: str,
    place: str | Path,
    **options: Any,
) -> dict[str, Any]:
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
