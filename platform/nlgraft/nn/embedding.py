"""Token embeddings, and the input of the first layer made from them.

Shape letters: B sentences, R rows, T tokens, D model width.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.decoder_state import EmbeddingCache
from nlgraft.nn.model_config import Positions, TransformerConfig

# Sinusoids: positions, and the constant segment embeddings made of them.
#
# Shape letters: P positions, D model width.


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
    exponents = torch.arange(half, dtype=torch.float64) * (-math.log(10000) / steps)
    frequencies = torch.exp(exponents)
    first = 2 if layout == "fairseq" else 0
    angles = (positions_P.to(torch.float64) + first)[:, None] * frequencies
    parts = [angles.sin(), angles.cos()]
    is_interleaved = layout == "interleaved"
    table = torch.stack(parts, dim=2).flatten(1) if is_interleaved else torch.cat(parts, dim=1)
    return table.to(torch.float32)


class SinusoidalPositions(nn.Module):
    """Sinusoids of positions 0, 1, 2...; the table grows on demand and is not part of the weights."""

    table: Tensor

    def __init__(
        self,
        d_model: int,
        layout: Layout,
        num_positions: int = 256,
    ) -> None:
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


class TableEmbedding(nn.Module):
    """One learned vector per token: N(0, 1/sqrt(D)), the padding row zero."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        pad_id: int,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model, padding_idx=pad_id)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        # nn.Embedding had set the padding row to zero; the line above has overwritten it.
        nn.init.zeros_(self.table.weight[pad_id])

    def forward(self, tokens: Tokens) -> Tensor:
        """Look up tokens [B, T]; returns [B, T, D]."""
        return self.table(tokens.ids)

    def new_cache(self) -> None:
        """Return None: a table keeps nothing between steps."""

    def step(self, ids_R1: Tensor, cache: EmbeddingCache | None) -> Tensor:
        """Look up one more token per row, [R, 1]; returns [R, 1, D]."""
        return self.table(ids_R1)


class InputLayer(nn.Module):
    """Scale, positions, segment, norm and dropout.

    Source: Huang et al. (2021), Eq. 8 (with mBART's norm); Vaswani et al. (2017) (without).

    Args:
        config: The model's configuration.
        positions: Kind of positions on this side.
        has_scale: Multiply embeddings by sqrt(D).
        has_segments: Add segment embeddings, which tell sources apart, if the configuration has them.
    """

    segments: Tensor | None

    def __init__(
        self, config: TransformerConfig, positions: Positions, *, has_scale: bool, has_segments: bool
    ) -> None:
        super().__init__()
        d_model = config.d_model
        self.scale = math.sqrt(d_model) if has_scale else 1.0
        self.positions: LearnedPositions | SinusoidalPositions | None = None
        if positions == "learned":
            self.positions = LearnedPositions(d_model, config.max_positions)
        elif positions == "sinusoidal":
            self.positions = SinusoidalPositions(d_model, config.position_layout)
        segments = _segments(config) if has_segments and config.segments != "none" else None
        if segments is not None and config.segments == "learned":
            self.segments = nn.Parameter(segments)
        else:
            # Constants follow from the configuration, so checkpoints do not hold them.
            self.register_buffer("segments", segments, persistent=False)
        self.norm = nn.LayerNorm(d_model, eps=config.norm_eps) if config.has_embedding_norm else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        embedded_BTD: Tensor,
        *,
        segment: int | None = None,
        start: int = 0,
    ) -> Tensor:
        """Make the first layer's input [B, T, D].

        Args:
            embedded_BTD: Token embeddings.
            segment: Index of the source; None on the target side.
            start: Position of the first token.
        """
        x_BTD = embedded_BTD * self.scale
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(start, x_BTD.shape[1])
        if self.segments is not None and segment is not None:
            x_BTD = x_BTD + self.segments[segment]
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        return self.dropout(x_BTD)


def _segments(config: TransformerConfig) -> Tensor:
    first = 1 if config.segments == "interleaved" else 0
    layout = "interleaved" if config.segments == "interleaved" else "halves"
    indices = torch.arange(first, first + config.num_sources)
    return sinusoids(1000 * indices, config.d_model, layout)
