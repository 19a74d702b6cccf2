"""The TRICE fine encoder: sources that were encoded look at one another once more.

Shape letters: B sentences, T positions of a source, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from nlgraft.nn.attention import Attention
from nlgraft.nn.config import NORM_EPS, FineEncoderConfig, TransformerConfig
from nlgraft.nn.memory import Memory, concatenate, split
from nlgraft.nn.residual import FeedForward, Residual


class FineLayer(nn.Module):
    """Self-attention, attention to the other sources, FFN; the same weights for every source.

    Source: Huang et al. (2021), Eqs. 11-14. Differs: a source without others, or whose others are all absent,
    attends to nothing and gets zero.
    """

    def __init__(
        self, config: FineEncoderConfig, d_model: int, num_heads: int, ffn_dim: int, eps: float = NORM_EPS
    ) -> None:
        """Build the layer.

        Args:
            config: The fine encoder's configuration.
            d_model: Width.
            num_heads: Attention heads.
            ffn_dim: Inner width of the FFN.
            eps: Added to the variance in norms.
        """
        super().__init__()
        self.config = config
        dims = (d_model, config.norm, config.dropout)
        has_cross = config.cross_memory != "none"
        self.attention = Attention(d_model, num_heads, config.dropout)
        self.attention_residual = Residual(*dims, eps=eps)
        self.cross_attention = Attention(d_model, num_heads, config.dropout) if has_cross else None
        self.cross_residual = Residual(*dims, eps=eps) if has_cross else None
        self.ffn = FeedForward(d_model, ffn_dim, config.activation, config.dropout)
        self.ffn_residual = Residual(*dims, eps=eps)

    def forward(self, bank: Sequence[Memory], coarse: Sequence[Memory]) -> list[Memory]:
        """Refine every source.

        Args:
            bank: States of each source, [B, T, D]: A^(i-1).
            coarse: The coarse encoder's states of each source: R.

        Returns:
            Refined states of each source: A^i.
        """
        attended = self.attend_self(bank)
        crossed = [self._attend_others(attended, coarse, k) for k in range(len(bank))]
        return [m.with_states(self._feed(x)) for m, x in zip(bank, crossed, strict=True)]

    def attend_self(self, bank: Sequence[Memory]) -> list[Memory]:
        """The first sublayer, within each source or over all of them.

        Args:
            bank: States of each source, [B, T, D].

        Returns:
            States of each source: B_k of Eq. 11.
        """
        if self.config.self_scope == "joint":
            joint = concatenate(bank)
            return split(joint.with_states(self._attend_self(joint)), bank)
        return [memory.with_states(self._attend_self(memory)) for memory in bank]

    def _attend_self(self, x: Memory) -> Tensor:
        query = self.attention_residual.enter(x.states)
        attended = self.attention(query, [self.attention.project(x.with_states(query))])
        return self.attention_residual.leave(x.states, attended)

    def _attend_others(self, bank: Sequence[Memory], coarse: Sequence[Memory], k: int) -> Tensor:
        x_BTD = bank[k].states
        if self.cross_attention is None or self.cross_residual is None:
            return x_BTD
        seen = coarse
        if self.config.cross_memory == "same_layer":
            seen = [m.with_states(self.cross_residual.enter(m.states)) for m in bank]
        others = [memory for j, memory in enumerate(seen) if j != k]
        if not others:
            return self.cross_residual.leave(x_BTD, torch.zeros_like(x_BTD))
        memory = self.cross_attention.project(concatenate(others))
        attended = self.cross_attention(self.cross_residual.enter(x_BTD), [memory])
        return self.cross_residual.leave(x_BTD, attended)

    def _feed(self, x_BTD: Tensor) -> Tensor:
        return self.ffn_residual.leave(x_BTD, self.ffn(self.ffn_residual.enter(x_BTD)))


class FFNAdapter(nn.Module):
    """A residual FFN block; its norm has no parameters, so that it counts as Table 5 of the paper does."""

    def __init__(self, config: TransformerConfig) -> None:
        """Build the block.

        Args:
            config: The model's configuration.
        """
        super().__init__()
        fine = config.fine_encoder
        self.ffn = FeedForward(config.d_model, config.ffn_dim, fine.activation, fine.dropout)
        self.residual = Residual(
            config.d_model, config.norm, fine.dropout, is_affine=False, eps=config.norm_eps
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each position.

        Args:
            x_BTD: States [B, T, D].

        Returns:
            States [B, T, D].
        """
        return self.residual.leave(x_BTD, self.ffn(self.residual.enter(x_BTD)))


class FineEncoder(nn.Module):
    """Fine layers over the coarse bank, and the FFN adapters that Table 5 compares them with.

    Everything that is trained from scratch on top of a pretrained encoder-decoder lies in this module.
    """

    def __init__(self, config: TransformerConfig) -> None:
        """Build the layers; none of them with the default configuration.

        Args:
            config: The model's configuration.
        """
        super().__init__()
        fine = config.fine_encoder
        sizes = (config.d_model, config.num_heads, config.ffn_dim, config.norm_eps)
        num_adapters = {"none": 0, "per_layer": config.num_encoder_layers, "top": 1}[fine.ffn_adapter]
        self.ffn_adapter = fine.ffn_adapter
        self.layers = nn.ModuleList(FineLayer(fine, *sizes) for _ in range(fine.num_layers))
        self.adapters = nn.ModuleList(FFNAdapter(config) for _ in range(num_adapters))
        has_norm = fine.num_layers > 0 and fine.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps) if has_norm else None

    def after_layer(self, index: int, x_BTD: Tensor) -> Tensor:
        """What follows a coarse encoder layer.

        Args:
            index: The layer.
            x_BTD: Its output [B, T, D].

        Returns:
            The same, adapted where there is an adapter after every layer, [B, T, D].
        """
        return self.adapters[index](x_BTD) if self.ffn_adapter == "per_layer" else x_BTD

    def forward(self, coarse: Sequence[Memory]) -> list[Memory]:
        """Refine the coarse encoder's output.

        Args:
            coarse: One memory [B, T, D] for each source.

        Returns:
            The refined bank; the coarse one when there is nothing to do.
        """
        if self.ffn_adapter == "top":
            coarse = [memory.with_states(self.adapters[0](memory.states)) for memory in coarse]
        bank = list(coarse)
        for layer in cast("Iterable[FineLayer]", self.layers):
            bank = layer(bank, coarse)
        if self.norm is not None:
            bank = [memory.with_states(self.norm(memory.states)) for memory in bank]
        return bank
