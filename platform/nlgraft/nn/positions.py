"""Sinusoids: positions, and the constant segment embeddings made of them.

Shape letters: P positions, D model width.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError

Layout = Literal["halves", "interleaved", "marian", "fairseq"]


def sinusoids(positions_P: Tensor, d_model: int, layout: Layout) -> Tensor:
    """Compute the sinusoid of each position (any real numbers), float32 [P, D].

    Layouts: ``halves``: sines, then cosines, frequencies from 1 to exactly 1/10000 (tensor2tensor);
    ``interleaved``: sine and cosine alternate, frequencies 10000^(-2i/D); ``marian``: the latter frequencies
    in halves; ``fairseq``: halves that count from 2, the padding id + 1.

    Source: Vaswani et al. (2017), section 3.5.
    """
    half = d_model // 2
    # tensor2tensor divides by half - 1, so that its last frequency is exactly 1/10000.
    steps = max(half - 1, 1) if layout in ("halves", "fairseq") else half
    frequencies = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10000) / steps))
    first = 2 if layout == "fairseq" else 0
    angles = (positions_P.to(torch.float64) + first)[:, None] * frequencies
    parts = [angles.sin(), angles.cos()]
    table = torch.stack(parts, dim=2).flatten(1) if layout == "interleaved" else torch.cat(parts, dim=1)
    return table.to(torch.float32)


class SinusoidalPositions(nn.Module):
    """Sinusoids of positions 0, 1, 2...; the table grows on demand and is not part of the weights."""

    table: Tensor

    def __init__(self, d_model: int, layout: Layout, num_positions: int = 256) -> None:
        super().__init__()
        self.layout: Layout = layout
        self.register_buffer(
            "table", sinusoids(torch.arange(num_positions), d_model, layout), persistent=False
        )

    def forward(self, start: int, length: int) -> Tensor:
        """Embed ``length`` consecutive positions from ``start``, [length, D]."""
        if start + length > self.table.shape[0]:
            with torch.inference_mode(False):  # a table that grew while decoding is trained with later
                positions = torch.arange(2 * (start + length))
                self.table = sinusoids(positions, self.table.shape[1], self.layout).to(self.table)
        return self.table[start : start + length]


class LearnedPositions(nn.Module):
    """A learned vector per position."""

    def __init__(self, d_model: int, num_positions: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(num_positions, d_model) * d_model**-0.5)

    def forward(self, start: int, length: int) -> Tensor:
        """Embed ``length`` consecutive positions from ``start``, [length, D].

        Raises:
            ContractError: The input is longer than the position table.
        """
        if start + length > self.table.shape[0]:
            raise ContractError(
                f"a sequence of {start + length} tokens with learned positions for {self.table.shape[0]}: "
                "raise max_positions, truncate, or use sinusoidal positions"
            )
        return self.table[start : start + length]
