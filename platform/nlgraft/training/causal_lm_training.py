"""Objective and losses of causal language models.

Shape letters: N lines, W windows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.inputs import pack
from nlgraft.nn.batch import Tokens
from nlgraft.nn.causal_lms import TransformersCausalLM
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.training.causal_text import LineEnds, windows
from nlgraft.training.losses import Predictions, TokenObjective, segment_losses

_SCORING_TOKENS = 4096
"""Positions of a batch that is only read."""


def predict_tokens(model: TransformersCausalLM, tokens: Tokens) -> Predictions:
    """Predict every token of sequences [B, T] but the first of each."""
    is_predicted = tokens.valid[:, 1:]
    rows = is_predicted.nonzero()[:, 0]
    return Predictions(model(tokens.ids[:, :-1])[is_predicted], tokens.ids[:, 1:][is_predicted], rows)


causal_objective = TokenObjective(predict_tokens)


def causal_losses(
    model: TransformersCausalLM,
    lines: Ragged,
    ends: LineEnds,
    max_tokens: int,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """Compute nats and predicted tokens of every line by itself, its end included, [N, 2].

    A line of more than ``max_tokens`` tokens is read in windows, so that no text is left out.
    """
    text, line_W = windows(ends.around(lines), max_tokens)
    batches = LengthBatches(text.lengths, _SCORING_TOKENS, 0).in_order()
    packed = ((line_W[rows], pack(text, rows)) for rows in batches)
    return segment_losses(model, packed, len(lines), device, predict_tokens)


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
