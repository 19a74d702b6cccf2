"""Sequence classification with the body of a masked language model.

Shape letters: B lines, T positions of a line with begin and end, D width of the body, C classes.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from nlgraft.nn.batch import Tokens
from nlgraft.nn.masked_lm_models import NOT_PREDICTED, MaskedBatch, MaskedLM
from nlgraft.nn.model_config import ClassifierConfig
from nlgraft.nn.modes import freeze_unused


class Classifier(nn.Module):
    """A body, pooled to one state per line, and a head.

    **Frozen** bodies get no gradient and stay in evaluation mode. **Finetuned** ones are trained except for
    the prediction head, on which the states do not depend.

    Source: Devlin et al. (2019), section 4.1 (the first token's state, through a dense layer with tanh).
    """

    def __init__(self, body: MaskedLM, num_classes: int, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.body = body
        probe = Tokens.from_lists([[i % len(body.input_table) for i in (5, 6, 5)]])
        with torch.no_grad():
            # Measured, since configurations name the width differently from one architecture to the next.
            width = self._states(probe).shape[2]
        layers: list[nn.Module] = [nn.Linear(width, width), nn.Tanh()] if config.has_hidden_layer else []
        self.head = nn.Sequential(*layers, nn.Dropout(config.dropout), nn.Linear(width, num_classes))
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        if config.is_body_trained:
            freeze_unused(body, lambda: self._states(probe))
        else:
            body.requires_grad_(False)
        self.train(self.training)

    def _states(self, tokens: Tokens) -> Tensor:
        return self.body(MaskedBatch(tokens, torch.full_like(tokens.ids, NOT_PREDICTED)))[0]

    def train(self, mode: bool = True) -> Classifier:
        """Set the mode of everything but a frozen body."""
        super().train(mode)
        if not self.config.is_body_trained:
            self.body.eval()
        return self

    def forward(self, tokens: Tokens) -> Tensor:
        """Compute the logits of the classes, [B, C]."""
        with nullcontext() if self.config.is_body_trained else torch.no_grad():
            states_BTD = self._states(tokens)
        if self.config.pooling == "first":
            return self.head(states_BTD[:, 0])
        # Every line has begin and end, so the count is never zero.
        valid_BT1 = tokens.valid[:, :, None]
        pooled_BD = (states_BTD * valid_BT1).sum(1) / valid_BT1.sum(1)
        return self.head(pooled_BD)
