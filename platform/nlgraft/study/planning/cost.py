"""Time and size of a plan's stages: measured on earlier ones, or estimated from the size of trainings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nlgraft.basics.errors import DataError
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import StageCost
from nlgraft.study.data.plan import BITS_PER_S, BYTES_PER_WEIGHT, StepTime
from nlgraft.study.data.study import Resources
from nlgraft.text.files import expand, read_json

_FLOP = 6
"""Per parameter and token: two forward, four backward (Kaplan et al. 2020, section 2.1)."""
_FLOPS_PER_CPU = 5e10
"""A core at d_model 256 (benchmarks/results/2026-11-22.md: 1,390 tokens/s of 7.6 million parameters)."""
_FLOPS_PER_GPU = 3e13
"""About a third of what recent GPUs do in fp32 tensor formats; not measured."""
_STEP_S = 0.02
"""Overhead of a step, independent of model size; a whole step of the demo took 0.07 s on a busy machine."""


@dataclass(frozen=True)
class Cost:
    """Time and size of stages that are not stored yet.

    Attributes:
        seconds: Time of the workers; None when nothing is known.
        num_bytes: Size of the artifacts; None when nothing is known.
        estimated: Names of trainings whose cost is estimated from their size.
        unknown: Names of the stages that are left out.
    """

    seconds: float | None
    num_bytes: float | None
    estimated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def cost_of(
    stages: Iterable[tuple[Stage, int]], costs: Mapping[str, StageCost], resources: Resources
) -> Cost:
    """Add up the cost of stages, each given with its number.

    Args:
        stages: Stages that are not stored.
        costs: Mean costs of stored ones by name.
        resources: The shape of a trial, whose workers, as many as it may have, share a training.
    """
    seconds = 0.0
    num_bytes = 0.0
    estimated: dict[str, None] = {}
    unknown: dict[str, None] = {}
    has_training = False
    for stage, number in stages:
        seconds_and_bytes = _measured(stage, costs) or estimated_cost(stage, resources)
        if seconds_and_bytes is None:
            unknown[stage.name] = None
            continue
        has_training |= stage.work is not None
        if stage.name not in costs:
            estimated[stage.name] = None
        stage_s, stage_bytes = seconds_and_bytes
        seconds += number * stage_s
        num_bytes += number * stage_bytes
    names = (tuple(sorted(estimated)), tuple(sorted(unknown)))
    # Trainings dominate the cost: if they are known, the stages left out matter little.
    is_known = has_training or not unknown
    return Cost(seconds, num_bytes, *names) if is_known else Cost(None, None, *names)


def _measured(stage: Stage, costs: Mapping[str, StageCost]) -> tuple[float, float] | None:
    stored = costs.get(stage.name)
    return None if stored is None else (stored.mean_duration_s, stored.mean_bytes)


def estimated_cost(stage: Stage, resources: Resources) -> tuple[float, float] | None:
    """Estimate seconds and bytes of a training from its size; None for other stages."""
    if stage.work is None or stage.work.num_steps is None:
        return None
    parameters = _num_parameters(stage)
    if not parameters:
        return None
    rate = resources.cpus_per_worker * _FLOPS_PER_CPU
    if resources.gpus_per_worker:
        rate = resources.gpus_per_worker * _FLOPS_PER_GPU
    # Workers divide the tokens of a step among themselves, not its overhead.
    step_s = _STEP_S + _FLOP * parameters * stage.work.tokens_per_step / (rate * resources.max_workers)
    return stage.work.num_steps * step_s, BYTES_PER_WEIGHT * parameters


def step_times(stages: Iterable[Stage], costs: Mapping[str, StageCost]) -> list[StepTime]:
    """Return the step times of trainings that were timed with one worker, one for each name of a stage."""
    by_name: dict[str, StepTime] = {}
    for stage in stages:
        timed = costs[stage.name].by_workers if stage.name in costs else {}
        steps = stage.work.num_steps if stage.work is not None and stage.is_distributed else None
        if 1 in timed and steps and stage.name not in by_name:
            two_s = timed[2] / steps if 2 in timed else None
            line_s = 8 * BYTES_PER_WEIGHT * _num_parameters(stage) / BITS_PER_S
            by_name[stage.name] = StepTime(stage.name, timed[1] / steps, two_s, line_s)
    return [*by_name.values()]


def _num_parameters(stage: Stage) -> int:
    """Parameters of what a stage trains, or of the largest model below it; 0 when none is known."""
    if stage.work is not None and stage.work.num_parameters is not None:
        return stage.work.num_parameters
    if "checkpoint" in stage.locations:
        return _released_parameters(expand(stage.locations["checkpoint"]))
    return max(map(_num_parameters, stage.inputs.values()), default=0)


def _released_parameters(directory: Path) -> int:
    """Parameters of a released model, by the size of its files of weights; 0 where they cannot be told."""
    files = [*directory.glob("*.safetensors")] or [*directory.glob("pytorch_model*.bin")]
    if not files:
        return 0
    try:
        config = read_json(directory / "config.json")
    except DataError:
        return 0
    is_half = "16" in str(config.get("dtype") or config.get("torch_dtype"))
    num_bytes = sum(path.stat().st_size for path in files)
    return num_bytes // (BYTES_PER_WEIGHT // 2 if is_half else BYTES_PER_WEIGHT)
