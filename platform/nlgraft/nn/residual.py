"""The residual connection, the only place where norm order appears, and the feed-forward block.

Shape letters: B sentences, T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from nlgraft.nn.model_config import NORM_EPS, Activation, Norm

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": partial(F.relu, inplace=True),  # a linear map does not need its output for the gradient
    "gelu": F.gelu,
    "silu": F.silu,
}


class Residual(nn.Module):
    """The connection around a sublayer f: LN(x + drop(f(x))) if post-norm, x + drop(f(LN(x))) if pre-norm.

    ``f`` is called between ``enter`` and ``leave``, so that other flows can be merged with its result.

    Args:
        d_model: Width.
        norm: Norm order.
        dropout: Dropout on the sublayer's output.
        has_enter: ``enter`` will be called; without it a pre-norm connection has no parameters.
        has_leave: ``leave`` will be called; without it a post-norm connection has no parameters.
        is_affine: The norm has a gain and a bias.
        eps: Added to the variance in the norm.
    """

    def __init__(
        self,
        d_model: int,
        norm: Norm,
        dropout: float,
        *,
        has_enter: bool = True,
        has_leave: bool = True,
        is_affine: bool = True,
        eps: float = NORM_EPS,
    ) -> None:
        super().__init__()
        layer_norm = nn.LayerNorm(d_model, eps=eps, elementwise_affine=is_affine)
        self.input_norm = layer_norm if norm == "pre" and has_enter else None
        self.output_norm = layer_norm if norm == "post" and has_leave else None
        self.dropout = nn.Dropout(dropout)

    def enter(self, x_BTD: Tensor) -> Tensor:
        """Return the sublayer's input [B, T, D]: the residual stream, normalised if pre-norm."""
        return x_BTD if self.input_norm is None else self.input_norm(x_BTD)

    def leave(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Add the sublayer's output to the residual stream, and normalise if post-norm, [B, T, D]."""
        total = x_BTD + self.dropout(y_BTD)
        return total if self.output_norm is None else self.output_norm(total)


def zero(linear: nn.Linear) -> None:
    """Set the weights of a sublayer's last projection to zero, so that it contributes nothing at first."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)


class FeedForward(nn.Module):
    """The feed-forward block W2 drop(act(W1 x + b1)) + b2."""

    def __init__(
        self, d_model: int, ffn_dim: int, activation: Activation, activation_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, ffn_dim)
        self.outer = nn.Linear(ffn_dim, d_model)
        self.activate = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(activation_dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each position, [B, T, D]."""
        return self.outer(self.dropout(self.activate(self.inner(x_BTD))))
