"""Objectives of training, summed over real tokens, and the loss of every segment.

Shape letters: B sentences, J target positions, R real target positions, V vocabulary, d model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from nlgraft.nn.batch import Batch
from nlgraft.nn.model import Seq2Seq
from nlgraft.training.cross_entropy import projected_cross_entropy, smoothed_cross_entropy
from nlgraft.training.train_config import SmoothedTrainConfig, SmoothingKind

__all__ = [
    "Loss",
    "Objective",
    "SegmentLosses",
    "Seq2SeqObjective",
    "Translator",
    "freeze_module",
    "projected_cross_entropy",
    "real_hidden",
    "real_logits",
    "segment_losses",
    "smoothed_cross_entropy",
]


class Loss(NamedTuple):
    """Result of an objective on a batch; a plain ``(loss_sum, num_tokens)`` is accepted as well.

    Attributes:
        loss_sum: Loss summed over the batch's tokens, differentiable, scalar.
        num_tokens: Number of these tokens: the loop divides by the count of the whole global batch.
        terms: Parts of the sum for the learning curves, as detached sums over the same tokens.
    """

    loss_sum: Tensor
    num_tokens: int
    terms: Mapping[str, Tensor] = {}


Objective = Callable[[Any, Any], Loss | tuple[Tensor, int]]
"""``objective(model, batch)``; the batch is what the data made, moved to the device."""


class Translator(Protocol):
    """A model that maps a batch to a hidden state, and this to logits, at every target position."""

    def __call__(self, batch: Batch) -> Tensor:
        """Map a batch to hidden states [B, J, d]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., d] to logits [..., V]."""
        ...


def real_hidden(model: Translator, batch: Batch) -> tuple[Tensor, Tensor]:
    """Run the model; keep states [R, d] and true tokens [R] of the real target positions, row by row.

    Padding then costs no softmax.
    """
    hidden_BJd = model(batch)
    hidden, target = hidden_BJd.flatten(0, 1), batch.target_output.flatten()
    if batch.target_input.has_padding:
        positions_R = batch.target_input.valid.flatten().nonzero()[:, 0]
        hidden, target = hidden.index_select(0, positions_R), target.index_select(0, positions_R)
    return hidden, target


def real_logits(model: Translator, batch: Batch) -> tuple[Tensor, Tensor]:
    """Run the model; give logits [R, V] and true tokens [R] of the real target positions, row by row."""
    hidden_Rd, target_R = real_hidden(model, batch)
    return model.logits(hidden_Rd), target_R


@dataclass(frozen=True)
class Seq2SeqObjective:
    """Label-smoothed cross-entropy of the target given the sources.

    Attributes:
        smoothing: Probability mass taken from the true token.
        kind: The tokens that get it.
    """

    smoothing: float = 0.1
    kind: SmoothingKind = "uniform_all"

    @classmethod
    def of(cls, config: SmoothedTrainConfig) -> Seq2SeqObjective:
        """Make the objective of a training's ``label_smoothing`` and ``smoothing_kind``."""
        return cls(config.label_smoothing, config.smoothing_kind)

    def __call__(self, model: Translator, batch: Batch) -> Loss:
        """Compute the summed loss of a batch and its number of real target tokens."""
        hidden_Rd, target_R = real_hidden(model, batch)
        # A subclass may compute its logits otherwise, and then slices of the projection would be wrong.
        if isinstance(model, Seq2Seq) and type(model).logits is Seq2Seq.logits:
            output = model.output_projection
            loss = projected_cross_entropy(
                hidden_Rd, output.weight, output.bias, target_R, self.smoothing, self.kind
            )
        else:
            loss = smoothed_cross_entropy(model.logits(hidden_Rd), target_R, self.smoothing, self.kind)
        return Loss(loss, len(target_R))


@dataclass(frozen=True)
class SegmentLosses:
    """Negative log-likelihood of every target, without smoothing.

    Attributes:
        statistics: Nats and tokens of each segment, [N, 2], in the order of the data.
        batches: Number of batches that were run.
    """

    statistics: NDArray[np.float64]
    batches: int = field(default=0)

    @property
    def per_token(self) -> float:
        """Nats per token over all segments."""
        nats, tokens = self.statistics.sum(0)
        return float(nats / tokens)


@torch.no_grad()
def segment_losses(
    model: Any,
    batches: Iterable[tuple[NDArray[np.int64], Batch]],
    num_segments: int,
    device: torch.device | str = "cpu",
) -> SegmentLosses:
    """Compute the negative log-likelihood of every segment, with the model in evaluation mode.

    Args:
        model: A model with ``model(batch) -> [B, J, d]`` and ``logits``.
        batches: Row numbers [B] and the batch of these rows.
        num_segments: Number of segments in all.
        device: Device of the model.
    """
    was_training = model.training
    model.eval()
    statistics = np.zeros((num_segments, 2))
    count = 0
    for rows, cpu_batch in batches:
        logits_RV, target_R = real_logits(model, cpu_batch.to(device))
        nats_R = F.cross_entropy(logits_RV.float(), target_R, reduction="none").double().cpu().numpy()
        tokens_B = cpu_batch.target_input.valid.sum(1).numpy()
        # Real positions come row by row, so a segment's tokens lie together.
        owner_R = np.repeat(rows, tokens_B)
        np.add.at(statistics[:, 0], owner_R, nats_R)
        statistics[rows, 1] = tokens_B
        count += 1
    model.train(was_training)
    return SegmentLosses(statistics, count)


def freeze_module(module: nn.Module) -> nn.Module:
    """Put a module into eval mode and stop it from learning, in place, e.g. a teacher."""
    return module.eval().requires_grad_(False)
