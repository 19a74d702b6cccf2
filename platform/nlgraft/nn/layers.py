"""Encoder and decoder layers: sublayers, residual connections, and the four sites where flows are merged.

Shape letters: B sentences, R rows = B x hypotheses, T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from nlgraft.nn.attention import Attention, KeyValue, Memory
from nlgraft.nn.decoder_state import LayerMemory, SelfCache
from nlgraft.nn.fusion import Fusion
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.residual import FeedForward, Residual


def feed_forward(config: TransformerConfig) -> FeedForward:
    """Build the feed-forward block of one of the model's own layers."""
    return FeedForward(config.d_model, config.ffn_dim, config.activation, config.activation_dropout)


def residual(config: TransformerConfig) -> Residual:
    """Build the residual connection of one of the model's own layers."""
    return Residual(config.d_model, config.norm, config.dropout, eps=config.norm_eps)


class EncoderLayer(nn.Module):
    """Self-attention and FFN; fusion branches run in parallel."""

    def __init__(self, config: TransformerConfig, fusion: Fusion) -> None:
        super().__init__()
        self.attention = Attention(config.d_model, config.num_heads, config.attention_dropout)
        self.attention_residual = residual(config)
        self.ffn = feed_forward(config)
        self.ffn_residual = residual(config)
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
        self.attention = Attention(config.d_model, config.num_heads, config.attention_dropout)
        self.attention_residual = residual(config)
        self.cross_attention = Attention(config.d_model, config.num_heads, config.attention_dropout)
        self.cross_residual = residual(config)
        num_further = config.num_sources - 1 if config.cross_attention == "serial" else 0
        self.further_attentions = nn.ModuleList(
            Attention(config.d_model, config.num_heads, config.attention_dropout) for _ in range(num_further)
        )
        self.further_residuals = nn.ModuleList(residual(config) for _ in range(num_further))
        self.ffn = feed_forward(config)
        self.ffn_residual = residual(config)
        self.fusion = fusion

    def project(self, bank: Sequence[Memory], contexts: Sequence[Memory]) -> LayerMemory:
        """Compute the keys and values of the encoder's bank and of each branch's context."""
        attentions: list[Attention] = [self.cross_attention] * len(bank)
        for index, attention in enumerate(self._further()[: len(bank) - 1], start=1):
            attentions[index] = attention
        return LayerMemory(
            [attention.project(memory) for attention, memory in zip(attentions, bank, strict=True)],
            self.fusion.project(contexts),
        )

    def _further(self) -> list[Attention]:
        return cast("list[Attention]", list(self.further_attentions))

    def forward(self, x_RTD: Tensor, memory: LayerMemory, cache: SelfCache | None = None) -> Tensor:
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
        first, further = (
            (memory.cross[:1], memory.cross[1:]) if self.further_attentions else (memory.cross, [])
        )
        attended = self.fusion.at("self", self.cross_attention(query, first), flows)
        middle = self.fusion.at("self_norm", self.cross_residual.leave(x_RTD, attended), flows)
        if self.further_attentions:
            middle = _where_present(first[0], middle, x_RTD)
            middle = self._attend_further(middle, further)
        fed = self.fusion.at("ffn", self.ffn(self.ffn_residual.enter(middle)), flows)
        return self.fusion.at("ffn_norm", self.ffn_residual.leave(middle, fed), flows)

    def _attend_further(self, x_RTD: Tensor, memories: Sequence[KeyValue]) -> Tensor:
        for attention, connection, memory in zip(
            self._further(), cast("Iterable[Residual]", self.further_residuals), memories, strict=False
        ):
            y_RTD = connection.leave(x_RTD, attention(connection.enter(x_RTD), [memory]))
            x_RTD = _where_present(memory, y_RTD, x_RTD)
        return x_RTD


def _where_present(memory: KeyValue, y_RTD: Tensor, x_RTD: Tensor) -> Tensor:
    """Skip a source's sublayer, its norm included, in rows that lack this source."""
    if memory.present is None:
        return y_RTD
    present_R = memory.present.repeat_interleave(len(x_RTD) // len(memory.present), 0)
    return torch.where(present_R[:, :, None], y_RTD, x_RTD)
