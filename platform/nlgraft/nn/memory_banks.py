"""Memories: the states that attention reads. The plain Transformer has a bank of one.

Shape letters: B sentences, S positions of a memory, D its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nlgraft.nn.batch import Tokens


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

    @cached_property
    def mask(self) -> Tensor | None:
        """Positions that may be attended to, bool [B, 1, 1, S]; None: all.

        A sentence without a real position gets all of them, so that no softmax is over an empty set;
        ``present`` marks its result as void.
        """
        if not self.has_padding:
            return None
        valid = self.valid if self.present is None else self.valid | ~self.present[:, None]
        return valid[:, None, None, :]

    @cached_property
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
    return [
        memory.with_states(part) for memory, part in zip(bank, joint.states.split(widths, dim=1), strict=True)
    ]
