"""What a plan takes: time and size of its stages, measured or estimated, and the room of its trials."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from nlgraft.basics.errors import DataError, Problem
from nlgraft.basics.wording import count, size
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.manifest import Manifest
from nlgraft.pipeline.stage import Stage, StageGraph, Work
from nlgraft.pipeline.store import StageCost, TimedRun
from nlgraft.study.data.study import Resources
from nlgraft.text.files import expand, read_json

_BYTES_PER_WEIGHT = 4
_FLOP = 6
"""Per parameter and token: two forward, four backward (Kaplan et al. 2020, section 2.1)."""
_FLOPS_PER_CPU = 7e10
"""A core: 7e10 in benchmarks/results/2026-11-22.md (1,390 tokens/s of 7.6 million parameters) and in
docs/first_hours.md (Zen 3, two trials at once); up to 1.2e11 with AVX-512."""
_BESIDE_WEIGHTS = 600_000
"""Parameters that would take as long as what a token costs beside the weights: attention, losses, norms."""
_FLOPS_PER_GPU = 3e13
"""About a third of what recent GPUs do in fp32 tensor formats; not measured."""
_STEP_S = 0.02
"""Overhead of a step, independent of model size; a whole step of the demo took 0.07 s on a busy machine."""

_START_S = 0.3
"""Time of a stage that reads almost nothing."""
_CALLS = 2_000_000
"""Parameters that would take as long as the calls of a small model that reads or writes text."""
_FILLED = 0.7
"""Share of a budget of characters that padding leaves."""
_WIDTH = {"d_model", "hidden_size", "n_embd", "dim"}
_DEPTH = {"num_layers", "num_hidden_layers", "n_layer", "n_layers"}
"""Settings of ours, and what checkpoints of transformers call them."""
_DEPTH_OF_SIDE = {"num_encoder_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"}
_INNER = {"ffn_dim", "intermediate_size", "n_inner", "hidden_dim"}
_ALIKE = 0.05
"""Logarithm of the ratio up to which sizes count as the same."""


class TextSize(NamedTuple):
    """Size of the lines of one role."""

    num_lines: int
    num_characters: int
    num_bytes: int


Corpora = Mapping[str, Mapping[str, Mapping[str, TextSize]]]
"""Text by the fingerprint of a corpus, split and role."""
_NO_TEXT: Corpora = {}


@dataclass(frozen=True)
class Cost:
    """Time and size of stages that are not stored yet.

    Attributes:
        seconds: Time of the workers; None when nothing is known.
        num_bytes: Size of the artifacts; None when nothing is known.
        scaled: Names of stages whose cost is that of earlier runs of another size, scaled.
        estimated: Names of trainings whose cost is estimated from their size.
        unknown: Names of the stages that are left out.
    """

    seconds: float | None
    num_bytes: float | None
    scaled: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def cost_of(
    stages: Iterable[tuple[Stage, int]],
    costs: Mapping[str, StageCost],
    resources: Resources,
    corpora: Corpora = _NO_TEXT,
) -> Cost:
    """Add up the cost of stages, each given with its number.

    Args:
        stages: Stages that are not stored.
        costs: Costs of stored ones by name.
        resources: The shape of a trial, whose workers, as many as it may have, share a training.
        corpora: Text that was read.
    """
    seconds = num_bytes = 0.0
    scaled, estimated, unknown = set(), set(), set()
    has_training = False
    for stage, number in stages:
        measured = measured_cost(stage, costs, resources, _text_bytes(stage, corpora))
        seconds_and_bytes = measured or estimated_cost(stage, resources, corpora)
        if seconds_and_bytes is None:
            unknown.add(stage.name)
            continue
        has_training |= stage.work is not None
        if measured is None:
            estimated.add(stage.name)
        elif measured.is_scaled:
            scaled.add(stage.name)
        seconds += number * seconds_and_bytes[0]
        num_bytes += number * seconds_and_bytes[1]
    names = [tuple(sorted(stages)) for stages in (scaled, estimated, unknown)]
    # Trainings dominate the cost: if they are known, the stages left out matter little.
    if has_training or not unknown:
        return Cost(seconds, num_bytes, *names)
    return Cost(None, None, *names)


class Measured(NamedTuple):
    """Seconds and bytes of a stage by those of its name that have run, scaled where their size differs."""

    seconds: float
    num_bytes: float
    is_scaled: bool


def measured_cost(
    stage: Stage,
    costs: Mapping[str, StageCost],
    resources: Resources,
    text_bytes: int | None = None,
) -> Measured | None:
    """Scale the cost of the earlier runs that are nearest in size.

    Trainings scale with steps, tokens and parameters of a step, and workers, as in `estimated_cost`; other
    stages beyond their start with the text that they read, and those that apply a model with its parameters.

    Returns:
        None where no stage of this name has run, or a GPU is asked for and only other sizes have run, whose
        time a CPU may have taken.
    """
    stored = costs.get(stage.name)
    if stored is None:
        return None
    if not stored.runs:
        return Measured(stored.mean_duration_s, stored.mean_bytes, is_scaled=False)
    ratios = [(_ratio(stage, run, resources, text_bytes), run.manifest) for run in stored.runs]
    nearest = min(abs(math.log(ratio)) for ratio, _ in ratios)
    # Several runs of the nearest size: their mean varies less than one of them.
    alike = [(ratio, run) for ratio, run in ratios if abs(math.log(ratio)) <= nearest + _ALIKE]
    is_scaled = nearest > _ALIKE
    if is_scaled and resources.gpus_per_worker and stage.work is not None:
        return None
    start_s = 0.0 if stage.work is not None else _START_S
    seconds, num_bytes = [], []
    for ratio, run in alike:
        work_s = max(0.0, run.duration_s - start_s)
        seconds.append(min(run.duration_s, start_s) + work_s * ratio)
        growth = ratio if stage.work is None else _weights(stage, run)
        num_bytes.append(run.bytes * growth)
    return Measured(fmean(seconds), fmean(num_bytes), is_scaled)


def _ratio(
    stage: Stage,
    run: TimedRun,
    resources: Resources,
    text_bytes: int | None,
) -> float:
    """How many times as much a stage has to do as one that has run; 1 where the sizes are not known."""
    manifest = run.manifest
    if manifest.size is None:
        return 1.0
    if stage.work is None:
        in_text = text_bytes / run.text_bytes if text_bytes and run.text_bytes else 1.0
        before, now = (size.num_parameters or 0 for size in (manifest.size, stage.size))
        return in_text * ((now + _CALLS) / (before + _CALLS) if now and before else 1.0)
    planned_s = _training_s(replace(stage.work, num_parameters=_num_parameters(stage)), resources, None)
    run_s = _training_s(manifest.size, resources, manifest.num_workers)
    return planned_s / run_s if planned_s and run_s else 1.0


def _weights(stage: Stage, manifest: Manifest) -> float:
    before = manifest.size.num_parameters if manifest.size is not None else None
    now = stage.size.num_parameters
    return now / before if now and before else 1.0


def _text_bytes(
    stage: Stage,
    corpora: Corpora,
    roles: Collection[str] = (),
) -> int | None:
    """Add up the text below a stage, of the split alone that it names; None where some was not read.

    Of the ``roles``, or of all if there are none.
    """
    total = 0
    for below in StageGraph(stage).stages:
        if "corpus" in below.locations:
            if below.fingerprint not in corpora:
                return None
            split = stage.config.get("split")
            for name, by_role in corpora[below.fingerprint].items():
                if split in (None, name):
                    total += sum(by_role[role].num_bytes for role in by_role if not roles or role in roles)
    return total


def estimated_cost(
    stage: Stage, resources: Resources, corpora: Corpora = _NO_TEXT
) -> tuple[float, float] | None:
    """Estimate seconds and bytes of a training, of stored states and of copied weights; else None."""
    if stage.keeps == "weights":
        return _START_S, _BYTES_PER_WEIGHT * _num_parameters(stage)
    if stage.keeps is not None:
        return _states_cost(stage, resources, corpora)
    if stage.work is None:
        return None
    parameters = _num_parameters(stage)
    steps, tokens = _steps_of_text(stage, stage.work, corpora)
    if not parameters or steps is None:
        return None
    work = replace(stage.work, num_steps=steps, num_parameters=parameters, tokens_per_step=tokens)
    return _training_s(work, resources, None) or 0.0, _BYTES_PER_WEIGHT * parameters


def _steps_of_text(
    stage: Stage,
    work: Work,
    corpora: Corpora,
) -> tuple[int | None, int]:
    """Estimate steps, and tokens of a step, from the text where epochs, lines or characters are counted."""
    train, corpus = stage.config.get("train"), stage.inputs.get("corpus")
    by_role = {} if corpus is None else corpora.get(corpus.fingerprint, {}).get("train", {})
    sides = [side for role, side in by_role.items() if role != "label"]
    if not sides or not isinstance(train, Mapping):
        return work.num_steps, work.tokens_per_step
    num_lines, number = sides[0].num_lines, train.get("batch_sentences")
    if characters := train.get("batch_characters"):
        number = _FILLED * characters * num_lines / max(side.num_characters for side in sides)
    # Encoder and decoder have half of the weights each; several sources pass through one encoder.
    num_bytes = sum(side.num_bytes for side in sides) / min(2, len(sides))
    num_tokens, tokens_per_step = num_bytes / _bytes_per_token(stage), work.tokens_per_step
    if number is not None:
        share = min(num_lines, number) / num_lines
        tokens_per_step = round(num_tokens * share * train.get("accumulation", 1))
    if work.num_steps is not None:
        return work.num_steps, tokens_per_step
    return math.ceil(train["max_epochs"] * num_tokens / max(1, tokens_per_step)), tokens_per_step


def _bytes_per_token(stage: Stage) -> float:
    """Estimate the bytes of a token: 1.8 to 3 of vocabularies of 300 to 1,000 pieces, 4.5 of BERT's."""
    vocab_size = _largest(stage, {"vocab_size"}) or 1000
    return max(1.0, 1.1 * math.log10(vocab_size) - 0.4)


def _states_cost(
    stage: Stage,
    resources: Resources,
    corpora: Corpora,
) -> tuple[float, float] | None:
    """Estimate what an encoder's states of each token of a text take, or their means."""
    encoded, encoder = stage.inputs["encoded"], stage.inputs["encoder"]
    text_bytes = _text_bytes(encoded, corpora, set(encoded.config["streams"].values()))
    if text_bytes is None:
        return None
    num_tokens = text_bytes / _bytes_per_token(encoded)
    selection = stage.config["selection"]
    depth = selection["num_last"] or _largest(encoder, _DEPTH)
    per_token = _largest(encoder, _WIDTH) * (1 if selection["kind"] == "index" else depth)
    # A third of a training's work: forward alone.
    forward = Work(1, round(num_tokens / 3), _num_parameters(encoder))
    seconds = _training_s(forward, resources, 1) or 0.0
    if stage.keeps == "means":
        return seconds, _BYTES_PER_WEIGHT * per_token
    bytes_per_number = 4 if stage.config["precision"] == "fp32" else 2
    return seconds, bytes_per_number * per_token * num_tokens


def _largest(stage: Stage, settings: Collection[str]) -> int:
    """Find a size among the settings of a model or of those below it; 0 if none has it."""
    values: Mapping[str, Any] = stage.config
    if "checkpoint" in stage.locations:
        with suppress(DataError):
            values = read_json(expand(stage.locations["checkpoint"]) / "config.json")
    sizes = [
        value
        for path, value in dotted(values)
        if isinstance(value, int) and path.rpartition(".")[2] in settings
    ]
    if not sizes:
        sizes = [_largest(below, settings) for below in stage.inputs.values()]
    return max(sizes, default=0)


def _training_s(
    work: Work,
    resources: Resources,
    num_workers: int | None,
) -> float | None:
    """Estimate the time of a training; without a number of workers, on as many as a trial may have."""
    if work.num_steps is None:
        return None
    rate = resources.cpus_per_worker * _FLOPS_PER_CPU
    if resources.gpus_per_worker:
        rate = resources.gpus_per_worker * _FLOPS_PER_GPU
    # Workers divide the tokens of a step among themselves, not its overhead.
    rate *= num_workers or resources.max_workers
    parameters = _BESIDE_WEIGHTS + (work.num_parameters or 0)
    return work.num_steps * (_STEP_S + _FLOP * parameters * work.tokens_per_step / rate)


def memory_problems(stages: Iterable[Stage], memory_bytes: float) -> list[Problem]:
    """Find trainings whose weights alone exceed the memory of a machine; one for each name of a stage."""
    sizes: dict[str, float] = {}
    for stage in stages:
        if stage.work is not None:
            num_bytes = _BYTES_PER_WEIGHT * _num_parameters(stage)
            sizes[stage.name] = max(num_bytes, sizes.get(stage.name, 0.0))
    has = f"this machine's memory has {size(memory_bytes)}; lower the sizes of its model"
    return [
        Problem("base", f"stage {name} trains weights of {size(num_bytes)}, {has}")
        for name, num_bytes in sizes.items()
        if num_bytes > memory_bytes
    ]


def gpu_memory(stage: Stage, resources: Resources) -> dict[str, float]:
    """Estimate the bytes that a training takes on each GPU; empty where its parameters are not known.

    Of N parameters of 4 bytes all are trained (or adapters alone, which are left out), by AdamW with 8 N
    bytes of moments or with a momentum of 4 N. ``sharding: full`` divides these over the fewest workers;
    beside them the first worker measures the whole model, 4 N. For a batch of T tokens a worker, activations
    take 4 T (L w + 3 d + 3 V) bytes with L layers, each of w = 11 d + 4 f numbers for widths d outside and f
    inside, and V tokens of the vocabulary (logits, and their gradient twice); with activation checkpointing
    L w becomes L d + w. Within 15 % for Llamas in fp32 (tests/unit/study/test_gpu_memory.py), a quarter less
    in bf16; scores of attention, which kernels of GPUs do not store, are left out.
    """
    total, settings = _num_parameters(stage), stage.config.get("train")
    if stage.work is None or not total or not isinstance(settings, Mapping):
        return {}
    width = _largest(stage, _WIDTH)
    depth = _largest(stage, _DEPTH) or 2 * _largest(stage, _DEPTH_OF_SIDE)
    layer = 11 * width + 4 * (_largest(stage, _INNER) or 4 * width)
    kept = depth * width + layer if settings.get("activation_checkpointing") else depth * layer
    tokens = stage.work.tokens_per_step / settings.get("accumulation", 1) / resources.min_workers
    num_moments = 2 if settings.get("optimizer", "adamw") == "adamw" else 1
    is_divided, num_bytes = resources.sharding == "full", _BYTES_PER_WEIGHT * total
    part = num_bytes / (resources.min_workers if is_divided else 1)
    learned = part if stage.config.get("lora") is None else 0.0
    memory = {"weights": part, "gradients": learned, "optimiser": num_moments * learned}
    activations = 4 * tokens * (kept + 3 * width + 3 * _largest(stage, {"vocab_size"}))
    if is_divided and num_bytes > activations:
        return memory | {"the whole model, with which dev is measured": num_bytes}
    return memory | {"activations": activations}


def gpu_notes(stages: Iterable[Stage], resources: Resources) -> tuple[list[str], list[Problem]]:
    """Tell what the largest training takes of a GPU; those that do not fit, one a name, are problems."""
    needs: dict[str, dict[str, float]] = {}
    for stage in stages:
        parts = gpu_memory(stage, resources) if stage.is_training and resources.gpus_per_worker else {}
        earlier = needs.get(stage.name, {})
        if sum(parts.values()) > sum(earlier.values()):
            needs[stage.name] = parts
    totals = {name: sum(parts.values()) for name, parts in needs.items()}
    texts = {
        name: f"stage {name} takes about {size(totals[name])} of each GPU: "
        + ", ".join(f"{part} {size(num_bytes)}" for part, num_bytes in needs[name].items())
        for name in sorted(totals, key=lambda name: -totals[name])
    }
    limit = math.inf if resources.gpu_memory is None else 1e9 * resources.gpu_memory
    way = "more workers" if resources.sharding == "full" else "resources.sharding: full with several workers"
    message = (
        f"a GPU has {size(limit)}; what helps: {way}, train.activation_checkpointing: true, smaller batches "
        "with more accumulation, adapters (lora) where the system has them"
    )
    return [*texts.values()][:1], [
        Problem("resources.gpu_memory", f"{text}; {message}")
        for name, text in texts.items()
        if totals[name] > limit
    ]


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
    # Half-precision files hold two parameters in the bytes of one.
    is_half = "16" in str(config.get("dtype") or config.get("torch_dtype"))
    num_bytes = sum(path.stat().st_size for path in files)
    return num_bytes // (_BYTES_PER_WEIGHT // 2 if is_half else _BYTES_PER_WEIGHT)


# The needs of one trial against the capacity of a cluster.


_TOLERANCE = 1e-9
_FIELDS = {"CPU": "cpus_per_worker", "GPU": "gpus_per_worker"}


def capacity_problems(
    resources: Resources, capacity: Mapping[str, float], where: str = "the cluster"
) -> list[Problem]:
    """Find needs of a trial that the cluster can never meet; Ray itself would wait for them forever.

    Args:
        resources: The needs of one trial.
        capacity: Capacity of the cluster, by Ray's resource names; a name left out counts as 0.
        where: Name of the cluster in messages.
    """
    problems = []
    # With a range of workers, a trial fits where the fewest do.
    least = resources.min_workers
    for kind, amount in resources.of_workers(least).items():
        available = capacity.get(kind, 0.0)
        if amount > available + _TOLERANCE:
            field = _FIELDS[kind]
            each = getattr(resources, field)
            workers = f"{'at least ' if least < resources.max_workers else ''}{count(least, 'worker')}"
            message = (
                f"asks for {amount:g} {kind}s per trial ({workers} x {each:g}), {where} has {available:g}; "
                f"lower resources.workers or resources.{field}, or use a larger cluster"
            )
            problems.append(Problem(f"resources.{field}", message))
    return problems


def max_concurrent(resources: Resources, capacity: Mapping[str, float]) -> int:
    """Compute how many trials fit at once, no more than the study allows; 0 when not even one fits.

    Of trials with a range of workers, all get the maximum but one, which takes the remaining workers if they
    are enough.

    Args:
        resources: The needs of one trial.
        capacity: Capacity of the cluster, by Ray's resource names.
    """
    number = num_fitting(resources.per_trial, capacity)
    if resources.min_workers < resources.max_workers:
        used = {kind: number * amount for kind, amount in resources.per_trial.items()}
        free = {kind: capacity.get(kind, 0.0) - amount for kind, amount in used.items()}
        number += min(1, num_fitting(resources.of_workers(resources.min_workers), free))
    allowed = max_allowed(resources)
    return number if allowed is None else min(number, allowed)


def num_fitting(needs: Mapping[str, float], capacity: Mapping[str, float]) -> int:
    """Count how often needs fit a capacity, both by Ray's resource names."""
    return min(_fit(amount, capacity.get(kind, 0.0)) for kind, amount in needs.items() if amount > 0)


def max_allowed(resources: Resources) -> int | None:
    """Compute how many trials at once the study allows on any cluster; None for any number."""
    needs = resources.per_trial
    # A cap on what a trial does not use limits nothing.
    caps = {kind: cap for kind, cap in resources.caps.items() if needs[kind] > 0}
    limits = [math.floor(cap / needs[kind] + _TOLERANCE) for kind, cap in caps.items()]
    if resources.max_concurrent is not None:
        limits.append(resources.max_concurrent)
    return min(limits, default=None)


def _fit(amount: float, available: float) -> int:
    if amount < 1:
        # Ray places a fraction on one device, so that remainders of several do not add up.
        return math.floor(available + _TOLERANCE) * math.floor(1 / amount + _TOLERANCE)
    return math.floor(available / amount + _TOLERANCE)
