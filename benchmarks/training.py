"""Training: target tokens per CPU-second, ours against Hugging Face's Marian, one thread, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.material import Material, marian_model, our_model
from benchmarks.measure import Rates, interleave
from nlgraft.nn.batch import Batch
from nlgraft.training.data import Seq2SeqData
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.views import View

BATCH_TOKENS = 4096
DEFAULT_BATCH_SENTENCES = 128
NUM_ROUNDS = 7
STEPS_PER_ROUND = 2


def _endless(data: Seq2SeqData) -> Iterator[Batch]:
    index = 0
    while True:
        for rows in data.epoch(index):
            yield data.batch(rows, index)
        index += 1


def _random_batches(data: Seq2SeqData, size: int) -> Iterator[Batch]:
    random = np.random.default_rng(0)
    while True:
        yield data.batch(random.choice(len(data), size, replace=False), 0)


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _ours(batches: Iterator[Batch], vocab_size: int, is_bf16: bool = False) -> Callable[[], float]:
    model = our_model(vocab_size).train()
    objective, optimizer = Seq2SeqObjective(0.1), _optimizer(model)

    def work() -> float:
        num_tokens = 0
        for _ in range(STEPS_PER_ROUND):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
                found = objective(model, next(batches))
            _step(model, optimizer, found.loss_sum / found.num_tokens)
            num_tokens += found.num_tokens
        return num_tokens

    return work


def _marian(batches: Iterator[Batch], vocab_size: int) -> Callable[[], float]:
    model: Any = marian_model(vocab_size).train()
    optimizer = _optimizer(model)
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1)

    def work() -> float:
        num_tokens = 0
        for _ in range(STEPS_PER_ROUND):
            batch = next(batches)
            valid = batch.target_input.valid
            labels = batch.target_output.masked_fill(~valid, -100)
            logits = model(
                input_ids=batch.sources[0].ids,
                attention_mask=batch.sources[0].valid.long(),
                decoder_input_ids=batch.target_input.ids,
            ).logits
            _step(model, optimizer, loss_of(logits.flatten(0, 1), labels.flatten()))
            num_tokens += int(valid.sum())
        return num_tokens

    return work


def measure(material: Material) -> Rates:
    """Measure our training against the peer's, on our batches and on its own defaults.

    Args:
        material: The corpus.

    Returns:
        Target tokens per CPU-second.
    """
    data = partial(Seq2SeqData, material.train, View(), batch_tokens=BATCH_TOKENS)
    size = material.vocab_size
    contestants = {
        "nlgraft": _ours(_endless(data(seed=1)), size),
        "nlgraft, bf16": _ours(_endless(data(seed=1)), size, is_bf16=True),
        "Marian, our batches": _marian(_endless(data(seed=1)), size),
        "Marian, Trainer-default batches": _marian(
            _random_batches(data(seed=1), DEFAULT_BATCH_SENTENCES), size
        ),
    }
    return interleave("target tokens", contestants, NUM_ROUNDS)
