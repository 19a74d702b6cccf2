"""State that the decoder keeps between steps.

The hypotheses of a sentence lie side by side, and the keys of all of them form one memory of that sentence:
a hypothesis sees those of its ancestors through a mask. Reordering hypotheses thus moves a few booleans and
never the keys and values; slots without living descendants are dropped from time to time.

Shape letters: B sentences, K hypotheses per sentence, S slots = steps x K, N heads, H width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nlgraft.nn.attention import KeyValue


class Ancestry:
    """The slots that belong to each hypothesis; shared by the caches of all layers."""

    def __init__(self) -> None:
        self.beam = 1
        self.num_steps = 0
        self.num_shared = 0
        self.mask_BKS: Tensor | None = None
        self.room = 0

    def expand(self, beam: int) -> None:
        """Turn the single hypothesis of each sentence into ``beam`` hypotheses that share their prefix."""
        assert self.beam == 1, "hypotheses are expanded once"
        self.beam = beam
        self.num_shared = self.num_steps
        self.room = 16 * beam

    def step(self, num_sentences: int, device: torch.device) -> None:
        """Give every hypothesis a slot for its next token."""
        self.num_steps += 1
        if self.beam == 1:
            return
        if self.mask_BKS is None:
            shared = (num_sentences, self.beam, self.num_shared)
            self.mask_BKS = torch.ones(shared, dtype=torch.bool, device=device)
        own_slot = torch.eye(self.beam, dtype=torch.bool, device=device)
        new_slots = own_slot.expand(num_sentences, -1, -1)
        self.mask_BKS = torch.cat([self.mask_BKS, new_slots], dim=2)

    def forget(self) -> Tensor | None:
        """Drop slots without living descendants once there are many of them.

        Returns:
            The slots that remain, int64 [B, S]; None: all. Sentences with fewer keep a few dead ones.
        """
        if self.mask_BKS is None or self.mask_BKS.shape[2] < self.room:
            return None
        is_alive_BS = self.mask_BKS.any(1)
        count = int(is_alive_BS.sum(1).max())
        # At least twice the living slots, so that the cost of compaction is amortised.
        self.room = max(self.room, 2 * count)
        # A stable sort keeps the living slots in the order of their steps.
        order_BS = is_alive_BS.byte().argsort(dim=1, descending=True, stable=True)
        kept_BS = order_BS[:, :count]
        index = kept_BS[:, None].expand(-1, self.beam, -1)
        self.mask_BKS = self.mask_BKS.gather(2, index)
        return kept_BS

    def reorder(self, parent_BK: Tensor) -> None:
        """Replace hypothesis k by a copy of hypothesis ``parent_BK[:, k]`` (int64) of its sentence."""
        if self.mask_BKS is not None:
            self.mask_BKS = self.mask_BKS.gather(1, parent_BK[:, :, None].expand_as(self.mask_BKS))

    def select(self, rows_B: Tensor) -> None:
        """Keep the sentences at these indices (int64)."""
        if self.mask_BKS is not None:
            self.mask_BKS = self.mask_BKS[rows_B]


class SelfCache:
    """Keys and values of the tokens so far in one self-attention, in buffers that grow by doubling.

    The owner of ``ancestry`` steps it once before all caches are appended to.
    """

    def __init__(self, ancestry: Ancestry) -> None:
        self.ancestry = ancestry
        self.key_BNSH: Tensor | None = None
        self.value_BNSH: Tensor | None = None
        self.length = 0

    def append(self, new: KeyValue) -> KeyValue:
        """Append one token per hypothesis, keys and values [B x K, N, 1, H].

        Returns:
            Keys and values of all tokens so far, [B, N, S, H], with each hypothesis' own mask.
        """
        beam = self.ancestry.beam
        key, value = (_side_by_side(t, beam) for t in (new.key, new.value))
        stop = self.length + beam
        self.key_BNSH = _grown(self.key_BNSH, key, self.length, stop)
        self.value_BNSH = _grown(self.value_BNSH, value, self.length, stop)
        self.key_BNSH[:, :, self.length : stop] = key
        self.value_BNSH[:, :, self.length : stop] = value
        self.length = stop
        mask = self.ancestry.mask_BKS
        return KeyValue(
            self.key_BNSH[:, :, :stop],
            self.value_BNSH[:, :, :stop],
            None if mask is None else mask[:, None],
        )

    def keep(self, slots_BS: Tensor) -> None:
        """Keep some slots of each sentence, int64 [B, S]."""
        if self.key_BNSH is not None and self.value_BNSH is not None:
            _, num_heads, _, width = self.key_BNSH.shape
            index = slots_BS[:, None, :, None].expand(-1, num_heads, -1, width)
            self.key_BNSH = self.key_BNSH.gather(2, index)
            self.value_BNSH = self.value_BNSH.gather(2, index)
            self.length = slots_BS.shape[1]

    def select(self, rows_B: Tensor) -> None:
        """Keep the sentences at these indices (int64)."""
        if self.key_BNSH is not None and self.value_BNSH is not None:
            self.key_BNSH, self.value_BNSH = self.key_BNSH[rows_B], self.value_BNSH[rows_B]


class StackCache:
    """The caches of a stack of self-attention layers."""

    def __init__(self, num_layers: int) -> None:
        self.ancestry = Ancestry()
        self.layers = [SelfCache(self.ancestry) for _ in range(num_layers)]

    def step(self, num_rows: int, device: torch.device) -> int:
        """Make room for one more token per hypothesis; returns its position."""
        slots_BS = self.ancestry.forget()
        if slots_BS is not None:
            for layer in self.layers:
                layer.keep(slots_BS)
        self.ancestry.step(num_rows // self.ancestry.beam, device)
        return self.ancestry.num_steps - 1

    def expand(self, beam: int) -> None:
        """Turn the single hypothesis of each sentence into ``beam`` hypotheses that share their prefix."""
        self.ancestry.expand(beam)

    def reorder(self, parent_BK: Tensor) -> None:
        """Replace hypothesis k by a copy of hypothesis ``parent_BK[:, k]`` (int64) of its sentence."""
        self.ancestry.reorder(parent_BK)

    def select(self, rows_B: Tensor) -> None:
        """Keep the sentences at these indices (int64)."""
        self.ancestry.select(rows_B)
        for layer in self.layers:
            layer.select(rows_B)


@dataclass(frozen=True)
class LayerMemory:
    """The keys and values that one decoder layer reads besides the target; computed once per source.

    Attributes:
        cross: The encoder's memories, projected by this layer's cross-attention.
        branches: The contexts, projected by this layer's fusion branches.
    """

    cross: list[KeyValue]
    branches: list[KeyValue]

    def select(self, rows_B: Tensor) -> LayerMemory:
        """Take the sentences at these indices (int64)."""
        cross = [memory.select(rows_B) for memory in self.cross]
        return LayerMemory(cross, [memory.select(rows_B) for memory in self.branches])


class EmbeddingCache(Protocol):
    """State of a contextual target embedding between steps; a table has None instead."""

    def expand(self, beam: int) -> None:
        """Turn the single hypothesis of each sentence into ``beam`` hypotheses that share their prefix."""

    def reorder(self, parent_BK: Tensor) -> None:
        """Replace hypothesis k by a copy of hypothesis ``parent_BK[:, k]`` (int64) of its sentence."""

    def select(self, rows_B: Tensor) -> None:
        """Keep the sentences at these indices (int64)."""


class DecoderState:
    """Everything that is kept between two decoding steps.

    Args:
        memories: One per decoder layer.
        embedding: Empty cache of the target embedding, if it needs one.
    """

    def __init__(self, memories: Sequence[LayerMemory], embedding: EmbeddingCache | None = None) -> None:
        self.memories = list(memories)
        self.own = StackCache(len(self.memories))
        self.embedding = embedding
        self._caches: list[EmbeddingCache] = [self.own] if embedding is None else [self.own, embedding]

    def expand(self, beam: int) -> None:
        """Turn the single hypothesis of each sentence into ``beam`` (K) hypotheses that share their prefix.

        From then on there are R = B x K rows, those of a sentence side by side.
        """
        for cache in self._caches:
            cache.expand(beam)

    def reorder(self, parent_BK: Tensor) -> None:
        """Replace hypothesis k by a copy of hypothesis ``parent_BK[:, k]`` (int64) of its sentence."""
        for cache in self._caches:
            cache.reorder(parent_BK)

    def select(self, rows_B: Tensor) -> None:
        """Keep the sentences at these indices (int64)."""
        self.memories = [memory.select(rows_B) for memory in self.memories]
        for cache in self._caches:
            cache.select(rows_B)


def parent_rows(parent_BK: Tensor) -> Tensor:
    """Number the rows [B x K] that are copied where hypothesis k becomes hypothesis ``parent_BK[:, k]``."""
    first_B1 = parent_BK.shape[1] * torch.arange(len(parent_BK), device=parent_BK.device)[:, None]
    return (first_B1 + parent_BK).flatten()


def _side_by_side(new: Tensor, beam: int) -> Tensor:
    return new.unflatten(0, (-1, beam)).squeeze(3).transpose(1, 2)


def _grown(
    buffer: Tensor | None,
    new: Tensor,
    length: int,
    stop: int,
) -> Tensor:
    if buffer is not None and stop <= buffer.shape[2]:
        return buffer
    batch, num_heads, beam, width = new.shape
    capacity = 32 * beam if buffer is None else max(32 * beam, 2 * buffer.shape[2])
    # Uninitialised memory is fine: slots beyond the length are never read.
    grown = new.new_empty(batch, num_heads, capacity, width)
    if buffer is not None:
        grown[:, :, :length] = buffer[:, :, :length]
    return grown
