"""Decoding with a target-side language model that keeps no states: what its cache saves is measured so.

Shape letters: B sentences, K hypotheses of a sentence, R = B x K rows, T tokens so far, H encoder's width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from nlgraft.errors import ContractError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.contextual import ContextualEmbedding, ContextualEncoder
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.pooling import LayerStates


class Prefixes:
    """All that was said in each row, in place of states."""

    def __init__(self) -> None:
        """Begin without tokens."""
        self.ids_RT: Tensor | None = None
        self.beam = 1

    def append(self, ids_R1: Tensor) -> Tensor:
        """Add one token to every row.

        Args:
            ids_R1: Its ids, int64 [R, 1].

        Returns:
            All tokens so far, int64 [R, T].
        """
        self.ids_RT = ids_R1 if self.ids_RT is None else torch.cat([self.ids_RT, ids_R1], dim=1)
        return self.ids_RT

    def expand(self, beam: int) -> None:
        """Let each sentence have several hypotheses that share what was said so far.

        Args:
            beam: How many; there was one until now.
        """
        self.beam = beam
        if self.ids_RT is not None:
            self.ids_RT = self.ids_RT.repeat_interleave(beam, 0)

    def reorder(self, parent_BK: Tensor) -> None:
        """Replace each hypothesis by a continuation of another one of its sentence.

        Args:
            parent_BK: Which of the K hypotheses is continued, int64 [B, K].
        """
        if self.ids_RT is not None:
            first_B1 = self.beam * torch.arange(len(parent_BK), device=parent_BK.device)[:, None]
            self.ids_RT = self.ids_RT[(first_B1 + parent_BK).flatten()]

    def select(self, rows_B: Tensor) -> None:
        """Keep some sentences.

        Args:
            rows_B: Their indices, int64.
        """
        if self.ids_RT is not None:
            self.ids_RT = self.ids_RT.unflatten(0, (-1, self.beam))[rows_B].flatten(0, 1)


class RereadingEncoder(nn.Module):
    """A causal encoder that reads the whole prefix for every token.

    Source: released code of Edunov et al. (2019), 259 instead of 2,334 tokens/s (Table 5).
    """

    def __init__(self, encoder: ContextualEncoder) -> None:
        """Wrap an encoder.

        Args:
            encoder: A causal one.
        """
        super().__init__()
        self.encoder = cast("nn.Module", encoder)
        self.shape = encoder.shape
        self.vocab_size = encoder.vocab_size

    def forward(self, tokens: Tokens) -> LayerStates:
        """Read whole sentences.

        Args:
            tokens: Right-padded tokens [B, T].

        Returns:
            What the encoder says, states [B, T, H].
        """
        return self.encoder(tokens)

    def new_cache(self) -> Prefixes:
        """Prepare reading token by token.

        Returns:
            A cache that holds tokens only.
        """
        return Prefixes()

    def step(self, ids_R1: Tensor, cache: Prefixes) -> LayerStates:
        """Read one more token of every row, and all before it once more.

        Args:
            ids_R1: Its ids, int64 [R, 1].
            cache: Updated in place.

        Returns:
            The newest token's states [R, 1, H].
        """
        ids_RT = cache.append(ids_R1)
        states = self(Tokens(ids_RT, torch.ones_like(ids_RT, dtype=torch.bool)))
        return LayerStates([layer[:, -1:] for layer in states.layers], states.output[:, -1:])


@contextmanager
def without_language_model_cache(model: Seq2Seq) -> Iterator[None]:
    """Let a model's target-side language model keep no states meanwhile.

    Args:
        model: A model with a target context; changed in place and back.

    Yields:
        Nothing.

    Raises:
        ContractError: The model has no language model on its target side.
    """
    embedding = model.target_embedding
    if not isinstance(embedding, ContextualEmbedding):
        raise ContractError(
            "the model has no target_context: there is no language model whose cache could be done without"
        )
    context = embedding.context
    cached = context.encoder
    context.encoder = cast("ContextualEncoder", RereadingEncoder(cached))
    try:
        yield
    finally:
        context.encoder = cached
