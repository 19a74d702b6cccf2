"""Training: target tokens per CPU-second on one thread, ours against peers, interleaved.

Each peer runs twice: its model on our batches, and on the batches that its users get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.material import Material, load_material, our_model
from benchmarks.measure import Rates, interleave, table
from benchmarks.peers import (
    has_joeynmt,
    joeynmt_batch,
    joeynmt_model,
    joeynmt_sampler,
    marian_model,
)
from nlgraft.nn.batch import Batch
from nlgraft.nn.model import Seq2Seq
from nlgraft.training.data import Seq2SeqData
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.views import View

BATCH_TOKENS = 4096
DEFAULT_BATCH_SENTENCES = 128
NUM_ROUNDS = 7
AIMS = {
    "Marian, our batches": 1.0,
    "JoeyNMT, our batches": 1.25,
    "Marian, Trainer-default batches": 1.9,
    "JoeyNMT, its own batches": 2.5,
}
"""How many times their tokens ours must learn from (shared/specs/performance.md, section 1)."""


def endless(data: Seq2SeqData) -> Iterator[Batch]:
    """Batches of one epoch after the other."""
    index = 0
    while True:
        for rows in data.epoch(index):
            yield data.batch(rows, index)
        index += 1


def _random_batches(data: Seq2SeqData, size: int) -> Iterator[Batch]:
    random = np.random.default_rng(0)
    while True:
        yield data.batch(random.choice(len(data), size, replace=False), 0)


def _joeynmt_batches(data: Seq2SeqData, material: Material) -> Iterator[Batch]:
    streams = [material.train.stream(role) for role in ("source 0", "target")]
    pairs = [(x.tolist(), y.tolist()) for x, y in zip(*streams, strict=True)]
    sampler = joeynmt_sampler(pairs, BATCH_TOKENS)
    while True:
        for rows in sampler:
            yield data.batch(np.asarray(rows), 0)


def has_bf16() -> bool:
    """Whether the CPU computes in bfloat16; where it does not, bf16 was measured twenty times slower."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.98), fused=True)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def ours(model: Seq2Seq, batches: Iterator[Batch], *, is_bf16: bool = False) -> Callable[[], float]:
    """One optimiser step of ours, as a contestant."""
    model.train()
    objective, optimizer = Seq2SeqObjective(0.1), _optimizer(model)

    def work() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            found = objective(model, next(batches))
        _step(model, optimizer, found.loss_sum / found.num_tokens)
        return found.num_tokens

    return work


def _marian(batches: Iterator[Batch], vocab_size: int) -> Callable[[], float]:
    model: Any = marian_model(vocab_size).train()
    optimizer = _optimizer(model)
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1)

    def work() -> float:
        batch = next(batches)
        valid = batch.target_input.valid
        labels = batch.target_output.masked_fill(~valid, -100)
        logits = model(
            input_ids=batch.sources[0].ids,
            attention_mask=batch.sources[0].valid.long(),
            decoder_input_ids=batch.target_input.ids,
        ).logits
        _step(model, optimizer, loss_of(logits.flatten(0, 1), labels.flatten()))
        return int(valid.sum())

    return work


def _joeynmt(batches: Iterator[Batch], vocab_size: int) -> Callable[[], float]:
    model: Any = joeynmt_model(vocab_size).train()
    optimizer = _optimizer(model)

    def work() -> float:
        batch = joeynmt_batch(next(batches))
        loss_sum = model(return_type="loss", **vars(batch))[0]
        _step(model, optimizer, loss_sum / batch.ntokens)
        return batch.ntokens

    return work


def measure(material: Material) -> Rates:
    """Measure our training against the peers', on our batches and on their own.

    Args:
        material: The corpus.

    Returns:
        Target tokens per CPU-second.
    """
    data = partial(Seq2SeqData, material.train, View(), batch_tokens=BATCH_TOKENS, seed=1)
    size = material.vocab_size
    random = _random_batches(data(), DEFAULT_BATCH_SENTENCES)
    contestants = {
        "nlgraft": ours(our_model(size), endless(data())),
        "Marian, our batches": _marian(endless(data()), size),
        "Marian, Trainer-default batches": _marian(random, size),
    }
    if has_bf16():
        contestants["nlgraft, bf16"] = ours(our_model(size), endless(data()), is_bf16=True)
    if has_joeynmt():
        contestants["JoeyNMT, our batches"] = _joeynmt(endless(data()), size)
        contestants["JoeyNMT, its own batches"] = _joeynmt(_joeynmt_batches(data(), material), size)
    return interleave("target tokens", contestants, NUM_ROUNDS)


def report() -> list[str]:
    """Write what was measured."""
    material = load_material()
    rates = measure(material)
    efficiency = Seq2SeqData(material.train, View(), batch_tokens=BATCH_TOKENS, seed=1).padding()
    lines = [
        f"## Training, {BATCH_TOKENS} tokens a batch",
        "",
        *table(rates, "Marian, our batches"),
        "",
        f"Padding efficiency of our batches: {efficiency.efficiency:.3f}. Ratios of nlgraft to the peers:",
        "",
    ]
    for peer, aim in AIMS.items():
        if peer in rates.rates:
            ratio, low, high = rates.ratio("nlgraft", peer)
            lines.append(f"- {peer}: {ratio:.2f} ({low:.2f}-{high:.2f} over rounds), aim {aim}")
    if not has_bf16():
        lines.append("- bf16: left out, this CPU has no instructions for it")
    if not has_joeynmt():
        lines.append("- JoeyNMT is not installed: `make bench` installs it")
    return lines
