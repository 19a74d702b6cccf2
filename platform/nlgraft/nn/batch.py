"""Batches of tokens.

Shape letters: B sentences, T tokens of a sequence, J target tokens, L layers, H width of a context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Right-padded token sequences.

    Attributes:
        ids: Token ids, int64 [B, T].
        valid: True at real tokens, bool [B, T].
        layers: Precomputed hidden states of a frozen context, float [L, B, T, H]: the layers that its pooling
            selects. None: the context is run.
    """

    ids: Tensor
    valid: Tensor
    layers: Tensor | None = None

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]], pad_id: int = 0) -> Tokens:
        """Pad lists of ids, some of which may be empty, on the right."""
        width = max((len(sequence) for sequence in sequences), default=0)
        ids = torch.full((len(sequences), width), pad_id, dtype=torch.int64)
        lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        valid = torch.arange(width)[None, :] < lengths[:, None]
        # A boolean index runs row by row, in the order of the concatenated lists.
        joined = [i for sequence in sequences for i in sequence]
        ids[valid] = torch.tensor(joined, dtype=torch.int64)
        return cls(ids, valid)

    def with_layers(self, layers: Tensor) -> Tokens:
        """Attach the hidden states [L, B, T, H] of a context, so that it need not be run."""
        return self._like(Tokens(self.ids, self.valid, layers))

    def _like(self, other: Tokens) -> Tokens:
        # Keep what is known about padding: computing it again would wait for the device.
        other.__dict__.update(has_padding=self.has_padding, has_absent=self.has_absent)
        return other

    @cached_property
    def has_padding(self) -> bool:
        """True if some position holds no token, or there is no position."""
        return self.valid.shape[1] == 0 or not bool(self.valid.all())

    @cached_property
    def has_absent(self) -> bool:
        """True if some sentence has no token at all."""
        return self.has_padding and not bool(self.valid.any(1).all())

    def to(self, device: torch.device | str) -> Tokens:
        """Move to a device."""
        layers = None if self.layers is None else self.layers.to(device, non_blocking=True)
        ids = self.ids.to(device, non_blocking=True)
        valid = self.valid.to(device, non_blocking=True)
        return self._like(Tokens(ids, valid, layers))

    def select(self, rows_B: Tensor) -> Tokens:
        """Take the sentences at these indices (int64) and cut the columns that none of them fills."""
        valid = self.valid[rows_B]
        # Padding is on the right, so the number of used columns is the width.
        width = int(valid.any(0).sum()) if valid.numel() else valid.shape[1]
        layers = None if self.layers is None else self.layers[:, rows_B, :width]
        return Tokens(self.ids[rows_B, :width], valid[:, :width], layers)


class Movable:
    """A dataclass of tensors and tokens, or of lists and mappings of them; they move to a device together."""

    def to(self, device: torch.device | str) -> Self:
        """Move to a device."""
        moved = {name: _moved(part, device) for name, part in vars(self).items()}
        return replace(cast("Any", self), **moved)


def _moved(part: Any, device: torch.device | str) -> Any:
    if isinstance(part, Mapping):
        return {name: _moved(inner, device) for name, inner in part.items()}
    if isinstance(part, list):
        return [_moved(inner, device) for inner in part]
    if isinstance(part, Tensor):
        return part.to(device, non_blocking=True)
    return part.to(device)


@dataclass(frozen=True)
class Batch(Movable):
    """Training examples.

    Attributes:
        sources: One entry per source, all with the same B; an absent source has no valid token.
        target_input: Decoder input, [B, J].
        target_output: Tokens to predict, int64 [B, J]; the pad id where ``target_input.valid`` is False.
        contexts: Input of each context that feeds a fusion branch, by name.
    """

    sources: list[Tokens]
    target_input: Tokens
    target_output: Tensor
    contexts: dict[str, Tokens] = field(default_factory=dict)


def truncate_middle(tokens: Tokens, max_tokens: int) -> Tokens:
    """Truncate sequences longer than ``max_tokens`` to their first and last ``max_tokens`` / 2 tokens.

    Source: released code of Park and Zhao (2021), 256 + 256.
    """
    if tokens.ids.shape[1] <= max_tokens:
        return tokens
    lengths_B1 = tokens.valid.sum(1, keepdim=True)
    columns_T = torch.arange(max_tokens, device=tokens.ids.device)
    head = (max_tokens + 1) // 2
    # Behind the head, a truncated row is read from its end: its last column is the last token.
    is_cut_BT = (lengths_B1 > max_tokens) & (columns_T >= head)
    index_BT = torch.where(is_cut_BT, lengths_B1 - max_tokens + columns_T, columns_T)
    valid_BT = columns_T < lengths_B1.clamp(max=max_tokens)
    return Tokens(tokens.ids.gather(1, index_BT), valid_BT)
