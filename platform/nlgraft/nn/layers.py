"""Encoder and decoder layers: sublayers, residual connections, and the four sites where flows are merged.

Shape letters: B sentences, R rows = B x hypotheses, T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from nlgraft.nn.attention import Attention, KeyValue, Memory, concatenate
from nlgraft.nn.decoder_state import LayerMemory, SelfCache
from nlgraft.nn.fusion import Fusion
from nlgraft.nn.linear import FeedForward, Residual, zero
from nlgraft.nn.model_config import NORM_EPS, FineEncoderConfig, TransformerConfig


def feed_forward(config: TransformerConfig) -> FeedForward:
    """Build the feed-forward block of one of the model's own layers."""
    return FeedForward(config.d_model, config.ffn_dim, config.activation, config.activation_dropout)


def attention(config: TransformerConfig) -> Attention:
    """Build the attention of one of the model's own layers."""
    return Attention(config.d_model, config.num_heads, config.attention_dropout)


def residual(config: TransformerConfig) -> Residual:
    """Build the residual connection of one of the model's own layers."""
    return Residual(config.d_model, config.norm, config.dropout, eps=config.norm_eps)


class EncoderLayer(nn.Module):
    """Self-attention and FFN; fusion branches run in parallel."""

    def __init__(self, config: TransformerConfig, fusion: Fusion) -> None:
        super().__init__()
        self.attention, self.attention_residual = attention(config), residual(config)
        self.ffn, self.ffn_residual = feed_forward(config), residual(config)
        self.fusion = fusion

    def forward(self, x: Memory, contexts: Sequence[Memory]) -> Tensor:
        """Run the layer on states [B, T, D] with one context per branch; returns [B, T, D]."""
        query = self.attention_residual.enter(x.states)
        flows = self.fusion.flows(query, x.states, self.fusion.project(contexts))
        attended = self.attention(query, [self.attention.project(x.with_states(query))])
        attended = self.fusion.at("self", attended, flows)
        middle = self.fusion.at("self_norm", self.attention_residual.leave(x.states, attended), flows)
        fed = self.fusion.at("ffn", self.ffn(self.ffn_residual.enter(middle)), flows)
        return self.fusion.at("ffn_norm", self.ffn_residual.leave(middle, fed), flows)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention over a bank, FFN; fusion branches run beside the last two.

    With serial cross-attention source k + 1 has a sublayer of its own behind that of source k.
    """

    def __init__(self, config: TransformerConfig, fusion: Fusion) -> None:
        super().__init__()
        self.attention, self.attention_residual = attention(config), residual(config)
        self.cross_attention = attention(config)
        self.cross_residual = residual(config)
        num_further = config.num_sources - 1 if config.cross_attention == "serial" else 0
        self.further_attentions = nn.ModuleList(attention(config) for _ in range(num_further))
        self.further_residuals = nn.ModuleList(residual(config) for _ in range(num_further))
        self.ffn, self.ffn_residual = feed_forward(config), residual(config)
        self.fusion = fusion

    def project(self, bank: Sequence[Memory], contexts: Sequence[Memory]) -> LayerMemory:
        """Compute the keys and values of the encoder's bank and of each branch's context."""
        attentions: list[Attention] = [self.cross_attention] * len(bank)
        for index, further in enumerate(self._further()[: len(bank) - 1], start=1):
            attentions[index] = further
        return LayerMemory(
            [reader.project(memory) for reader, memory in zip(attentions, bank, strict=True)],
            self.fusion.project(contexts),
        )

    def _further(self) -> list[Attention]:
        return cast("list[Attention]", list(self.further_attentions))

    def forward(
        self,
        x_BTD: Tensor,
        bank: Sequence[Memory],
        contexts: Sequence[Memory],
    ) -> Tensor:
        """Run the layer on whole targets [B, T, D]; returns [B, T, D]."""
        return self.step(x_BTD, self.project(bank, contexts))

    def step(
        self,
        x_RTD: Tensor,
        memory: LayerMemory,
        cache: SelfCache | None = None,
    ) -> Tensor:
        """Run the layer: on whole targets without a cache, on one token per row with it.

        Args:
            x_RTD: Input [R, T, D]; T = 1 with a cache.
            memory: Result of ``project``.
            cache: Earlier tokens of each row; the new one is appended.

        Returns:
            Output [R, T, D].
        """
        query = self.attention_residual.enter(x_RTD)
        target_states = self.attention.project_states(query)
        # Step by step the cache's mask keeps out other hypotheses; there are no later tokens to hide.
        target_states = target_states if cache is None else cache.append(target_states)
        attended = self.attention(query, [target_states], is_causal=cache is None)
        x_RTD = self.attention_residual.leave(x_RTD, attended)

        query = self.cross_residual.enter(x_RTD)
        flows = self.fusion.flows(query, x_RTD, memory.branches)
        num_first = 1 if self.further_attentions else len(memory.cross)
        first, further = memory.cross[:num_first], memory.cross[num_first:]
        attended = self.fusion.at("self", self.cross_attention(query, first), flows)
        middle = self.fusion.at("self_norm", self.cross_residual.leave(x_RTD, attended), flows)
        if self.further_attentions:
            middle = _where_present(first[0], middle, x_RTD)
            middle = self._attend_further(middle, further)
        fed = self.fusion.at("ffn", self.ffn(self.ffn_residual.enter(middle)), flows)
        return self.fusion.at("ffn_norm", self.ffn_residual.leave(middle, fed), flows)

    def _attend_further(self, x_RTD: Tensor, memories: Sequence[KeyValue]) -> Tensor:
        for further, connection, memory in zip(
            self._further(), cast("Iterable[Residual]", self.further_residuals), memories, strict=False
        ):
            y_RTD = connection.around(x_RTD, partial(further, memories=[memory]))
            x_RTD = _where_present(memory, y_RTD, x_RTD)
        return x_RTD


def _where_present(memory: KeyValue, y_RTD: Tensor, x_RTD: Tensor) -> Tensor:
    """Skip a source's sublayer, its norm included, in rows that lack this source."""
    if memory.present is None:
        return y_RTD
    present_R = memory.present.repeat_interleave(len(x_RTD) // len(memory.present), 0)
    return torch.where(present_R[:, :, None], y_RTD, x_RTD)


# The TRICE fine encoder: further layers in which encoded sources attend to one another.
#
# Shape letters: B sentences, T positions of a source, D model width.


class FineLayer(nn.Module):
    """Self-attention, attention to the other sources, FFN; all sources share the weights.

    Source: Huang et al. (2021), Eqs. 11-14. Differs: a source without others, or whose others are all absent,
    gets zero from the attention to them.
    """

    def __init__(
        self,
        config: FineEncoderConfig,
        d_model: int,
        num_heads: int,
        ffn_dim: int,
        eps: float = NORM_EPS,
    ) -> None:
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
        if config.init == "zero":
            zero(self.attention.output)
            zero(self.ffn.outer)
            if self.cross_attention is not None:
                zero(self.cross_attention.output)

    def forward(self, bank: Sequence[Memory], coarse: Sequence[Memory]) -> list[Memory]:
        """Refine every source, A^(i-1) to A^i, each [B, T, D]; ``coarse`` holds the coarse encoder's R."""
        attended = [self.attend_self(memory) for memory in bank]
        crossed = [self._attend_others(attended, coarse, k) for k in range(len(bank))]
        fed = [self.ffn_residual.around(x_BTD, self.ffn) for x_BTD in crossed]
        return [memory.with_states(x_BTD) for memory, x_BTD in zip(bank, fed, strict=True)]

    def attend_self(self, x: Memory) -> Memory:
        """Apply self-attention within a source (B_k of Eq. 11)."""
        query = self.attention_residual.enter(x.states)
        attended = self.attention(query, [self.attention.project(x.with_states(query))])
        return x.with_states(self.attention_residual.leave(x.states, attended))

    def _attend_others(
        self,
        bank: Sequence[Memory],
        coarse: Sequence[Memory],
        k: int,
    ) -> Tensor:
        x_BTD = bank[k].states
        if self.cross_attention is None or self.cross_residual is None:
            return x_BTD
        seen = coarse
        if self.config.cross_memory == "same_layer":
            # In a pre-norm layer the other sources' residual streams need the norm of the queries.
            seen = [m.with_states(self.cross_residual.enter(m.states)) for m in bank]
        others = [memory for j, memory in enumerate(seen) if j != k]
        # A single source: the attention gives zero, but the connection's norm still applies.
        if not others:
            return self.cross_residual.leave(x_BTD, torch.zeros_like(x_BTD))
        memory = self.cross_attention.project(concatenate(others))
        attended = self.cross_attention(self.cross_residual.enter(x_BTD), [memory])
        return self.cross_residual.leave(x_BTD, attended)


class FFNAdapter(nn.Module):
    """A residual FFN block; its norm has no parameters, so that its size is that of the paper's Table 5."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        fine = config.fine_encoder
        self.ffn = FeedForward(config.d_model, config.ffn_dim, fine.activation, fine.dropout)
        self.residual = Residual(
            config.d_model, config.norm, fine.dropout, is_affine=False, eps=config.norm_eps
        )
        if fine.init == "zero":
            zero(self.ffn.outer)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each position, [B, T, D]."""
        return self.residual.around(x_BTD, self.ffn)


class FineEncoder(nn.Module):
    """Fine layers over the coarse bank, and the FFN adapters that Table 5 compares them with.

    Everything trained from scratch on top of a pretrained encoder-decoder lies in this module. It has no
    parameters by default.
    """

    def __init__(self, config: TransformerConfig) -> None:
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
        """Adapt the output [B, T, D] of a coarse encoder layer if there is an adapter after every layer."""
        if self.ffn_adapter == "per_layer":
            return self.adapters[index](x_BTD)
        return x_BTD

    def forward(self, coarse: Sequence[Memory]) -> list[Memory]:
        """Refine the coarse encoder's output, one memory [B, T, D] per source."""
        if self.ffn_adapter == "top":
            coarse = [memory.with_states(self.adapters[0](memory.states)) for memory in coarse]
        bank = list(coarse)
        for layer in cast("Iterable[FineLayer]", self.layers):
            bank = layer(bank, coarse)
        if self.norm is not None:
            bank = [memory.with_states(self.norm(memory.states)) for memory in bank]
        return bank
