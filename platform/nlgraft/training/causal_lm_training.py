"""Objective and losses of causal language models.

Shape letters: N lines, P predicted tokens, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.inputs import pack
from nlgraft.nn.batch import Tokens
from nlgraft.nn.causal_lms import TransformersCausalLM
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.training.causal_text import LineEnds, windows
from nlgraft.training.cross_entropy import smoothed_cross_entropy
from nlgraft.training.losses import Loss, SegmentLosses

_SCORING_TOKENS = 4096
"""Positions of a batch that is only read."""


class Predictions(NamedTuple):
    """Predicted tokens of a batch.

    Attributes:
        logits: [P, V].
        tokens: The true ones, int64 [P].
        rows: Sequence of each, int64 [P].
    """

    logits: Tensor
    tokens: Tensor
    rows: Tensor


def predict_tokens(model: TransformersCausalLM, tokens: Tokens) -> Predictions:
    """Predict every token of sequences [B, T] but the first of each."""
    is_predicted = tokens.valid[:, 1:]
    rows = is_predicted.nonzero()[:, 0]
    return Predictions(model(tokens.ids[:, :-1])[is_predicted], tokens.ids[:, 1:][is_predicted], rows)


def causal_objective(model: TransformersCausalLM, tokens: Tokens) -> Loss:
    """Sum the cross-entropy of the predicted tokens of a batch."""
    found = predict_tokens(model, tokens)
    return Loss(smoothed_cross_entropy(found.logits, found.tokens, 0.0, "uniform_all"), len(found.tokens))


@torch.no_grad()
def causal_losses(
    model: TransformersCausalLM,
    lines: Ragged,
    ends: LineEnds,
    max_tokens: int,
    device: torch.device | str = "cpu",
) -> SegmentLosses:
    """Compute nats and predicted tokens of every line by itself, its end included, in evaluation mode.

    A line of more than ``max_tokens`` tokens is read in windows, so that no text is left out.
    """
    was_training = model.training
    model.eval()
    found, owner = windows(ends.around(lines), max_tokens)
    statistics_N2 = np.zeros((len(lines), 2))
    batches = LengthBatches(found.lengths, _SCORING_TOKENS, 0).in_order()
    for rows in batches:
        predicted = predict_tokens(model, pack(found, rows).to(device))
        nats_P = F.cross_entropy(predicted.logits.float(), predicted.tokens, reduction="none")
        line_P = owner[rows[predicted.rows.cpu().numpy()]]
        np.add.at(statistics_N2[:, 0], line_P, nats_P.double().cpu().numpy())
        np.add.at(statistics_N2[:, 1], line_P, 1)
    model.train(was_training)
    return SegmentLosses(statistics_N2, len(batches))


def check_positions(model: TransformersCausalLM, max_tokens: int) -> None:
    """Refuse windows for which a model has no positions.

    Raises:
        DataError: It has fewer.
    """
    if model.max_tokens is not None and max_tokens > model.max_tokens:
        raise DataError(
            f"max_tokens is {max_tokens}, but the model has positions for {model.max_tokens}; set it to at "
            f"most {model.max_tokens}"
        )
