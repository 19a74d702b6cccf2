"""Multi-head attention over one memory or a bank of memories.

Shape letters: B sentences, R rows = B x hypotheses per sentence (R = B in training), T queries per row,
S positions of a memory, N heads, H width of a head, D model width, C width of a memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlgraft.nn.batch import Tokens
from nlgraft.nn.linear import Linear

# Memories: the states that attention reads. The plain Transformer has a bank of one.
#
# Shape letters: B sentences, S positions of a memory, D its width.


@dataclass(frozen=True)
class Memory:
    """States that can be attended to.

    Attributes:
        states: Float [B, S, D].
        valid: True where a state stands for a real token, bool [B, S].
        has_padding: True if some position is not real; known in advance, so that masks are built only if
            needed.
        has_absent: True if some sentence has no real position at all.
    """

    states: Tensor
    valid: Tensor
    has_padding: bool
    has_absent: bool

    @classmethod
    def of(cls, states: Tensor, tokens: Tokens) -> Memory:
        """Make the memory of states [B, S, D] that stand for these tokens."""
        return cls(states, tokens.valid, tokens.has_padding, tokens.has_absent)

    def with_states(self, states: Tensor) -> Memory:
        """Replace the states, [B, S, any width]; positions and padding stay."""
        return Memory(states, self.valid, self.has_padding, self.has_absent)

    @property
    def mask(self) -> Tensor | None:
        """Positions that may be attended to, bool [B, 1, 1, S]; None: all.

        A sentence without a real position gets all of them, so that no softmax is over an empty set;
        ``present`` marks its result as void.
        """
        if not self.has_padding:
            return None
        valid = self.valid if self.present is None else self.valid | ~self.present[:, None]
        return valid[:, None, None, :]

    @property
    def present(self) -> Tensor | None:
        """Sentences with at least one real position, bool [B]; None: all."""
        return self.valid.any(1) if self.has_absent else None


def concatenate(bank: Sequence[Memory]) -> Memory:
    """Concatenate memories of the same B and D along their positions; padding stays between the parts."""
    if len(bank) == 1:
        return bank[0]
    valid = torch.cat([memory.valid for memory in bank], dim=1)
    # The joint memory of a sentence is empty only if all its parts are.
    has_absent = all(memory.has_absent for memory in bank) and not bool(valid.any(1).all())
    return Memory(
        torch.cat([memory.states for memory in bank], dim=1),
        valid,
        any(memory.has_padding for memory in bank),
        has_absent,
    )


def split(joint: Memory, bank: Sequence[Memory]) -> list[Memory]:
    """Undo ``concatenate``: cut the joint memory's states at the widths of ``bank``."""
    widths = [memory.valid.shape[1] for memory in bank]
    parts = joint.states.split(widths, dim=1)
    return [memory.with_states(part) for memory, part in zip(bank, parts, strict=True)]


@dataclass(frozen=True)
class KeyValue:
    """Keys and values of a memory in one attention; computed once and attended to many times.

    Attributes:
        key: Float [B, N, S, H].
        value: Float [B, N, S, H].
        mask: True where a query may attend, bool [B, 1, 1 or queries, S]; no row is all False.
            None: everywhere.
        present: True where the result counts, elsewhere it becomes zero; bool [B, 1 or queries].
            None: everywhere.
    """

    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    present: Tensor | None = None

    def select(self, rows_B: Tensor) -> KeyValue:
        """Take the sentences at these indices (int64)."""
        return KeyValue(
            self.key[rows_B],
            self.value[rows_B],
            None if self.mask is None else self.mask[rows_B],
            None if self.present is None else self.present[rows_B],
        )


class Attention(nn.Module):
    """Scaled dot-product attention; the memory may have another width than the model.

    Attending to nothing gives exactly zero, output bias included. Several memories give the mean over those
    present (TRICE's separated cross-attention), taken before the output projection, which is linear.

    Args:
        d_model: Width of queries and output.
        num_heads: Number of heads.
        dropout: Dropout on attention weights.
        memory_dim: Width of the memory; None: ``d_model``.
        has_open_slot: Add one learned position that can always be attended to (fairseq's add_bias_kv).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        memory_dim: int | None = None,
        has_open_slot: bool = False,
    ) -> None:
        super().__init__()
        memory_dim = memory_dim or d_model
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = Linear(d_model, d_model)
        self.key_value = Linear(memory_dim, 2 * d_model)
        self.output = Linear(d_model, d_model)
        self.open_slot = nn.Parameter(torch.empty(2 * d_model)) if has_open_slot else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise with Xavier, fairseq's gain for query, key and value; biases are zero."""
        # The bound that Xavier gives query, key and value stacked as one [3D, D] matrix.
        gain = 1 / math.sqrt(2)
        d_model = self.query.out_features
        for weight in (self.query.weight, self.key_value.weight[:d_model], self.key_value.weight[d_model:]):
            nn.init.xavier_uniform_(weight, gain)
        nn.init.xavier_uniform_(self.output.weight)
        for linear in (self.query, self.key_value, self.output):
            nn.init.zeros_(linear.bias)
        if self.open_slot is not None:
            nn.init.normal_(self.open_slot, std=d_model**-0.5)

    def project(self, memory: Memory) -> KeyValue:
        """Compute the keys and values of a memory [B, S, C]."""
        present = None if memory.present is None else memory.present[:, None]
        return self.project_states(memory.states, memory.mask, present)

    def project_states(
        self,
        states_BSC: Tensor,
        mask: Tensor | None = None,
        present: Tensor | None = None,
    ) -> KeyValue:
        """Compute the keys and values of states under a given mask; an open slot is appended last.

        Args:
            states_BSC: States [B, S, C].
            mask: As in ``KeyValue``, without the open slot, bool [B, 1, 1 or queries, S].
            present: As in ``KeyValue``, bool [B, 1 or queries].
        """
        key_value = self.key_value(states_BSC)
        if self.open_slot is not None:
            # Autocast may have computed the keys in another type than the parameter's.
            slot = self.open_slot.to(key_value.dtype).expand(key_value.shape[0], 1, -1)
            key_value = torch.cat([key_value, slot], dim=1)
            mask = None if mask is None else F.pad(mask, (0, 1), value=True)
            present = None  # the slot is there in any case
        by_head = key_value.unflatten(2, (2, self.num_heads, -1))
        key, value = by_head.permute(2, 0, 3, 1, 4)
        return KeyValue(key, value, mask, present)

    def forward(
        self,
        x_RTD: Tensor,
        memories: Sequence[KeyValue],
        *,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend to each memory and average over those present.

        The hypotheses of a sentence (R = B x hypotheses, side by side) become further queries to that
        sentence's memory, so memories are never repeated for them.

        Args:
            x_RTD: Queries [R, T, D].
            memories: At least one; their batch size B divides R.
            is_causal: Query t attends to positions 0..t only; for a single memory without mask and T = S.

        Returns:
            Output [R, T, D].
        """
        num_rows, length, d_model = x_RTD.shape
        batch = memories[0].key.shape[0]
        # A sentence's hypotheses lie side by side, so the view turns them into further queries.
        width = d_model // self.num_heads
        query = self.query(x_RTD).view(batch, -1, self.num_heads, width).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        results = [
            F.scaled_dot_product_attention(
                query, memory.key, memory.value, memory.mask, dropout_p=dropout, is_causal=is_causal
            )
            for memory in memories
        ]
        presents = [memory.present for memory in memories]
        mixed, present = mean_over_present(results, presents)
        output = self.output(mixed.transpose(1, 2).reshape(num_rows, length, d_model))
        if present is None:
            return output
        present = present.expand(batch, query.shape[2]).reshape(num_rows, length, 1)
        # The output bias must vanish, too: attending to nothing gives exactly zero.
        return torch.where(present, output, 0.0)


def mean_over_present(
    results: Sequence[Tensor], presents: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor | None]:
    """Average the results [B, N, T, H] of several memories over those present.

    Args:
        results: One tensor [B, N, T, H] per memory.
        presents: Where each counts, bool [B, 1 or T]; None: everywhere.

    Returns:
        The mean [B, N, T, H], zero where no memory is present, and where at least one is, bool [B, 1 or T]
        (None: everywhere).

    Source: Huang et al. (2021), Eq. 16. Differs: absent sources are left out of the mean.
    """
    if len(results) == 1:
        return results[0], presents[0]
    if all(present is None for present in presents):
        return torch.stack(list(results)).mean(0), None
    shape = (results[0].shape[0], 1)
    masks = [
        r.new_ones(shape, dtype=torch.bool) if p is None else p
        for r, p in zip(results, presents, strict=True)
    ]
    weights = torch.stack(torch.broadcast_tensors(*masks)).to(results[0].dtype)
    count = weights.sum(0)
    total = (torch.stack(list(results)) * weights[:, :, None, :, None]).sum(0)
    # Where no memory is present, zero is divided by one instead of by zero.
    return total / count.clamp(min=1)[:, None, :, None], count > 0
