"""Objectives of training, summed over real tokens, and the loss of every segment.

Shape letters: B sentences, J target positions, R real target positions, V vocabulary, d model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.nn.batch import Batch
from nlgraft.nn.freezing import evaluating
from nlgraft.nn.model import Seq2Seq
from nlgraft.training.cross_entropy import projected_cross_entropy, smoothed_cross_entropy
from nlgraft.training.train_config import SmoothedTrainConfig, SmoothingKind

__all__ = [
    "Loss",
    "Objective",
    "Predictions",
    "Seq2SeqObjective",
    "TokenObjective",
    "Translator",
    "predict_target",
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


class Predictions(NamedTuple):
    """Predicted tokens of a batch.

    Attributes:
        logits: [P, V].
        tokens: The true ones, int64 [P].
        rows: Segment of the batch to which each belongs, int64 [P].
    """

    logits: Tensor
    tokens: Tensor
    rows: Tensor


Predict = Callable[[Any, Any], Predictions]
"""``predict(model, batch)``."""


@dataclass(frozen=True)
class TokenObjective:
    """Cross-entropy of the predicted tokens.

    Attributes:
        predict: Predicts the tokens of a batch.
        smoothing: Probability mass taken from the true token.
        kind: Tokens among which it is distributed.
    """

    predict: Predict
    smoothing: float = 0.0
    kind: SmoothingKind = "uniform_all"

    def __call__(self, model: Any, batch: Any) -> Loss:
        """Compute the summed loss of a batch and its number of predicted tokens."""
        logits_PV, tokens_P, _ = self.predict(model, batch)
        return Loss(smoothed_cross_entropy(logits_PV, tokens_P, self.smoothing, self.kind), len(tokens_P))


def predict_target(model: Translator, batch: Batch) -> Predictions:
    """Predict the real target tokens of a batch from those before them and the sources."""
    return Predictions(*real_logits(model, batch), batch.target_input.valid.nonzero()[:, 0])


def segment_losses(
    model: Any,
    batches: Iterable[tuple[NDArray[np.int64], Any]],
    num_segments: int,
    device: torch.device | str = "cpu",
    predict: Predict = predict_target,
) -> NDArray[np.float64]:
    """Compute the negative log-likelihood of every segment, with the model in evaluation mode.

    Args:
        model: The model.
        batches: Row numbers [B] and the batch of these rows; a segment may be in several batches.
        num_segments: Number of segments in all.
        device: Device of the model.
        predict: Predicts the tokens of a batch.

    Returns:
        Nats and predicted tokens of each segment, without smoothing, [N, 2].
    """
    statistics_N2 = np.zeros((num_segments, 2))
    with evaluating(model):
        for rows, batch in batches:
            logits_PV, tokens_P, row_P = predict(model, batch.to(device))
            nats_P = F.cross_entropy(logits_PV.float(), tokens_P, reduction="none").double().cpu().numpy()
            segment_P = rows[row_P.cpu().numpy()]
            np.add.at(statistics_N2[:, 0], segment_P, nats_P)
            np.add.at(statistics_N2[:, 1], segment_P, 1)
    return statistics_N2
