"""Decoding with a target-side language model that caches no states, to measure what its cache saves.

Shape letters: B sentences, K hypotheses per sentence, R = B x K rows, T tokens so far, H encoder's width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.contextual import ContextualEmbedding, ContextualEncoder
from nlgraft.nn.decoder_state import parent_rows
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.pooling import LayerStates


class Prefixes:
    """The tokens of each row so far, in place of a cache of states."""

    def __init__(self) -> None:
        self.ids_RT: Tensor | None = None
        self.beam = 1

    def append(self, ids_R1: Tensor) -> Tensor:
        """Append one token per row, [R, 1]; returns all tokens so far, int64 [R, T]."""
        self.ids_RT = ids_R1 if self.ids_RT is None else torch.cat([self.ids_RT, ids_R1], dim=1)
        return self.ids_RT

    def expand(self, beam: int) -> None:
        """Turn the single hypothesis of each sentence into ``beam`` hypotheses that share their prefix."""
        self.beam = beam
        if self.ids_RT is not None:
            self.ids_RT = self.ids_RT.repeat_interleave(beam, 0)

    def reorder(self, parent_BK: Tensor) -> None:
        """Replace hypothesis k by a copy of hypothesis ``parent_BK[:, k]`` (int64) of its sentence."""
        if self.ids_RT is not None:
            self.ids_RT = self.ids_RT[parent_rows(parent_BK)]

    def select(self, rows_B: Tensor) -> None:
        """Keep the sentences at these indices (int64)."""
        if self.ids_RT is not None:
            ids_BKT = self.ids_RT.unflatten(0, (-1, self.beam))
            self.ids_RT = ids_BKT[rows_B].flatten(0, 1)


class RereadingEncoder(nn.Module):
    """A causal encoder that encodes the whole prefix again for every token.

    Source: released code of Edunov et al. (2019), 259 instead of 2,334 tokens/s (Table 5).
    """

    def __init__(self, encoder: ContextualEncoder) -> None:
        super().__init__()
        self.encoder = cast("nn.Module", encoder)
        self.shape = encoder.shape
        self.vocab_size = encoder.vocab_size

    def forward(self, tokens: Tokens) -> LayerStates:
        """Encode whole sentences [B, T], states [B, T, H]."""
        return self.encoder(tokens)

    def new_cache(self) -> Prefixes:
        """Return an empty cache of tokens."""
        return Prefixes()

    def step(self, ids_R1: Tensor, cache: Prefixes) -> LayerStates:
        """Encode one more token per row, ids [R, 1], after all before it; returns its states [R, 1, H]."""
        ids_RT = cache.append(ids_R1)
        states = self(Tokens(ids_RT, torch.ones_like(ids_RT, dtype=torch.bool)))
        return LayerStates([layer[:, -1:] for layer in states.layers], states.output[:, -1:])


@contextmanager
def without_language_model_cache(model: Seq2Seq) -> Iterator[None]:
    """Let a model's target-side language model reread its prefix; the model is restored on exit.

    Raises:
        ContractError: The model has no language model on its target side.
    """
    embedding = model.target_embedding
    if not isinstance(embedding, ContextualEmbedding):
        raise ContractError(
            "the model has no target_context: there is no language model whose cache could be disabled"
        )
    context = embedding.context
    cached = context.encoder
    context.encoder = RereadingEncoder(cached)
    try:
        yield
    finally:
        context.encoder = cached
