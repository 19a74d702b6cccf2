"""The residual skeleton, the only place where norm order appears, and the feed-forward block.

Shape letters: B sentences, T positions, D model width, F inner width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from nlgraft.nn.config import NORM_EPS, Activation, Norm

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": partial(F.relu, inplace=True),  # a linear map does not need its output for the gradient
    "gelu": F.gelu,
    "silu": F.silu,
}


class Residual(nn.Module):
    """The way around a sublayer f: LN(x + drop(f(x))) when post, x + drop(f(LN(x))) when pre.

    ``f`` is called between ``enter`` and ``leave``, so that other flows can meet its result.
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
        """Build the skeleton.

        Args:
            d_model: Width.
            norm: Norm order.
            dropout: Dropout on the sublayer's output.
            has_enter: ``enter`` will be called; a pre-norm skeleton without it has no parameters.
            has_leave: ``leave`` will be called; a post-norm skeleton without it has no parameters.
            is_affine: The norm has a gain and a bias.
            eps: Added to the variance in the norm.
        """
        super().__init__()
        layer_norm = nn.LayerNorm(d_model, eps=eps, elementwise_affine=is_affine)
        self.input_norm = layer_norm if norm == "pre" and has_enter else None
        self.output_norm = layer_norm if norm == "post" and has_leave else None
        self.dropout = nn.Dropout(dropout)

    def enter(self, x_BTD: Tensor) -> Tensor:
        """What the sublayer reads.

        Args:
            x_BTD: Residual stream [B, T, D].

        Returns:
            The same, normalised when pre, [B, T, D].
        """
        return x_BTD if self.input_norm is None else self.input_norm(x_BTD)

    def leave(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Add what the sublayer says.

        Args:
            x_BTD: Residual stream [B, T, D].
            y_BTD: The sublayer's output [B, T, D].

        Returns:
            The new residual stream, normalised when post, [B, T, D].
        """
        total = x_BTD + self.dropout(y_BTD)
        return total if self.output_norm is None else self.output_norm(total)


class FeedForward(nn.Module):
    """W2 drop(act(W1 x + b1)) + b2."""

    def __init__(
        self, d_model: int, ffn_dim: int, activation: Activation, activation_dropout: float = 0.0
    ) -> None:
        """Build the block.

        Args:
            d_model: Width.
            ffn_dim: Inner width.
            activation: Non-linearity.
            activation_dropout: Dropout after it.
        """
        super().__init__()
        self.inner = nn.Linear(d_model, ffn_dim)
        self.outer = nn.Linear(ffn_dim, d_model)
        self.activate = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(activation_dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each position.

        Args:
            x_BTD: Input [B, T, D].

        Returns:
            Output [B, T, D].
        """
        return self.outer(self.dropout(self.activate(self.inner(x_BTD))))
