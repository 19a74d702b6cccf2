"""Training: target tokens per CPU-second on one thread, ours against peers, interleaved.

Ours is the training stage of a study, called as a trial calls it and paused between its reports. Marian takes
the same steps on the same batches, and is trained by Hugging Face's Trainer on the batches that it makes;
JoeyNMT runs on our batches and on its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.material import Material, load_material, our_config
from benchmarks.measure import Rates, Turns, interleave, table
from benchmarks.peers import (
    has_joeynmt,
    joeynmt_batch,
    joeynmt_model,
    joeynmt_sampler,
    marian_model,
    marian_trainer,
)
from nlgraft.nn.batch import Batch
from nlgraft.pipeline.stage import Stage
from nlgraft.stages import seq2seq_graph
from nlgraft.stages.run.seq2seq_stages import batches, train
from nlgraft.stages.seq2seq_graph import TRAIN, TrainSettings
from nlgraft.training import loop
from nlgraft.training.precision import has_bf16
from nlgraft.training.train_config import SmoothedTrainConfig
from nlgraft.training.views import Seq2SeqData

BATCH_TOKENS = 4096
STEPS = 2
"""Optimiser steps of a turn."""
DEFAULT_BATCH_SENTENCES = 128
NUM_ROUNDS = 7
OURS, MARIAN, TRAINER = "nlgraft", "Marian, our batches", "Marian, its Trainer"
AIMS = {
    MARIAN: 1.3,
    TRAINER: 2.0,
    "JoeyNMT, our batches": 1.25,
    "JoeyNMT, its own batches": 2.5,
}
"""How many times their tokens ours must learn from, where torch's own products leave AVX-512 unused."""


def training_config(
    batch_tokens: int = BATCH_TOKENS, precision: str = "fp32", *, is_compiled: bool = False
) -> SmoothedTrainConfig:
    """Train without end, reporting after every turn; only speed is of interest."""
    return SmoothedTrainConfig.model_validate(
        {
            "max_steps": 1_000_000,
            "batch_tokens": batch_tokens,
            "peak_lr": 1e-4,
            "label_smoothing": 0.1,
            "precision": precision,
            "compile": is_compiled,
            "eval_every_steps": 1_000_000,
        }
    )


def training_stage(material: Material, settings: TrainSettings) -> Stage:
    """The stage as a study's graph has it."""
    return seq2seq_graph.train("trained", material.text, settings, seed=1)


def data_of(material: Material, stage: Stage, inputs: Mapping[str, Path] | None = None) -> Seq2SeqData:
    """The batches that a training stage makes."""
    context = material.context(stage, inputs=inputs)
    settings, examples = TRAIN.read(context)
    return batches("train", settings, examples, context)


def endless(data: Seq2SeqData) -> Iterator[Batch]:
    """Batches of one epoch after the other."""
    index = 0
    while True:
        for rows in data.epoch(index):
            yield data.batch(rows, index)
        index += 1


def num_tokens(batch: Batch) -> int:
    """Target tokens of a batch."""
    return int(batch.target_input.valid.sum())


class _Turn:
    """A reporter that ends a turn at every report of a training."""

    def __init__(self, pause: Callable[[float], None], amounts: Iterator[int], steps: int) -> None:
        self._pause, self._amounts, self._steps = pause, amounts, steps

    def report(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._pause(sum(next(self._amounts) for _ in range(self._steps)))

    def should_stop(self) -> str | None:
        return None


def ours(
    material: Material,
    stage: Stage,
    inputs: Mapping[str, Path] | None = None,
    device: str = "cpu",
    steps: int = STEPS,
) -> Turns:
    """The training stage of a study, as a contestant that takes some steps in a turn."""
    # the same batches, counted beforehand: what is counted must not be part of the measured work
    batches = endless(data_of(material, stage, inputs))
    counts = [num_tokens(batch) for batch in itertools.islice(batches, steps * (NUM_ROUNDS + 2))]
    material.directory(material.text.encoded)
    loop.REPORT_EVERY_STEPS = steps

    def run(pause: Callable[[float], None]) -> None:
        reporter = _Turn(pause, iter(counts), steps)
        train(material.context(stage, reporter=reporter, inputs=inputs, device=device))

    return Turns(run)


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def marian(
    batches: Iterator[Batch],
    model: Any,
    device: str = "cpu",
    steps: int = STEPS,
    precision: str = "fp32",
) -> Callable[[], float]:
    """Marian on our batches, as a contestant that takes some steps in a turn."""
    model = model.to(device).train()
    optimizer = _optimizer(model)
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1)

    def step() -> int:
        on_cpu = next(batches)
        batch = on_cpu.to(device)
        valid = batch.target_input.valid
        labels = batch.target_output.masked_fill(~valid, -100)
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=precision == "bf16"):
            logits = model(
                input_ids=batch.sources[0].ids,
                attention_mask=batch.sources[0].valid.long(),
                decoder_input_ids=batch.target_input.ids,
            ).logits
            loss = loss_of(logits.flatten(0, 1), labels.flatten())
        _step(model, optimizer, loss)
        return num_tokens(on_cpu)

    return lambda: sum(step() for _ in range(steps))


def _trainer(material: Material) -> Turns:
    """Hugging Face's Trainer with its own batches: random sentences, padded to the longest."""
    return Turns(
        lambda pause: marian_trainer(
            material.vocab_size, material.split("train"), DEFAULT_BATCH_SENTENCES, STEPS, pause
        ).train()
    )


def _joeynmt_batches(data: Seq2SeqData, material: Material) -> Iterator[Batch]:
    train = material.split("train")
    streams = [train.stream(role) for role in ("source 0", "target")]
    pairs = [(x.tolist(), y.tolist()) for x, y in zip(*streams, strict=True)]
    sampler = joeynmt_sampler(pairs, BATCH_TOKENS)
    while True:
        for rows in sampler:
            yield data.batch(np.asarray(rows), 0)


def _joeynmt(batches: Iterator[Batch], vocab_size: int) -> Callable[[], float]:
    model: Any = joeynmt_model(vocab_size).train()
    optimizer = _optimizer(model)

    def step() -> int:
        batch = joeynmt_batch(next(batches))
        loss_sum = model(return_type="loss", **vars(batch))[0]
        _step(model, optimizer, loss_sum / batch.ntokens)
        return batch.ntokens

    return lambda: sum(step() for _ in range(STEPS))


def measure(material: Material) -> Rates:
    """Measure our training stage against the peers, on our batches and on their own."""
    stage = training_stage(material, TrainSettings(train=training_config(), model=our_config()))
    size = material.vocab_size
    contestants: dict[str, Callable[[], float]] = {
        OURS: ours(material, stage),
        MARIAN: marian(endless(data_of(material, stage)), marian_model(size)),
        TRAINER: _trainer(material),
    }
    settings = TrainSettings(train=training_config(is_compiled=True), model=our_config())
    contestants[f"{OURS}, compiled"] = ours(material, training_stage(material, settings))
    if has_bf16("cpu"):
        settings = TrainSettings(train=training_config(precision="bf16"), model=our_config())
        contestants[f"{OURS}, bf16"] = ours(material, training_stage(material, settings))
    if has_joeynmt():
        data = data_of(material, stage)
        contestants["JoeyNMT, our batches"] = _joeynmt(endless(data), size)
        contestants["JoeyNMT, its own batches"] = _joeynmt(_joeynmt_batches(data, material), size)
    return interleave("target tokens", contestants, NUM_ROUNDS)


def report() -> list[str]:
    """Write what was measured, on Multi30k and, with a small vocabulary, on the constructed language."""
    lines = _report(": a study's own stage", load_material())
    lines += ["", *_report(", on the constructed language", load_material(is_constructed=True))]
    if not has_bf16("cpu"):
        lines.append("- bf16: left out, this CPU has no instructions for it")
    if not has_joeynmt():
        lines.append("- JoeyNMT is not installed: `make bench` installs it")
    return lines


def _report(what: str, material: Material) -> list[str]:
    rates = measure(material)
    stage = training_stage(material, TrainSettings(train=training_config(), model=our_config()))
    batches = data_of(material, stage).batches
    lengths = [batches.lengths[rows] for rows in batches.epoch(0)]
    efficiency = sum(each.sum() for each in lengths) / sum(len(each) * each.max(0).sum() for each in lengths)
    lines = [
        f"## Training, {BATCH_TOKENS} tokens a batch{what}",
        "",
        f"{material.name}, vocabulary {material.vocab_size}.",
        "",
        *table(rates, MARIAN),
        "",
        f"Padding efficiency of our batches: {efficiency:.3f}. Ratios of nlgraft to the peers:",
        "",
    ]
    for peer, aim in AIMS.items():
        if peer in rates.rates:
            ratio, low, high = rates.ratio(OURS, peer)
            lines.append(f"- {peer}: {ratio:.2f} ({low:.2f}-{high:.2f} over rounds), aim {aim}")
    return lines
