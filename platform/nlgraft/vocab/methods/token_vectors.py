"""Vectors of tokens from text: skip-gram and CBOW with negative sampling.

Source: Mikolov et al. (2013), Distributed representations of words and phrases, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlgraft.basics.errors import DataError
from nlgraft.text.batches import IntArray
from nlgraft.vocab.methods.interface import TokenVectors, VectorKind


@dataclass(frozen=True)
class VectorOptions:
    """Settings of skip-gram and CBOW.

    Attributes:
        kind: Predict the context of a token (skip-gram) or a token from its context (cbow).
        width: Width of a vector.
        window_tokens: Largest distance of context tokens on either side.
        negatives: Random tokens told apart from each true one.
        epochs: Passes over the text.
        learning_rate: Learning rate of Adagrad.
        batch_size: Predictions of a step.
        min_count: Tokens that occur less often count as unknown.
        power: Random tokens are drawn by count to this power.
    """

    kind: VectorKind = "skipgram"
    width: int = 100
    window_tokens: int = 5
    negatives: int = 5
    epochs: int = 5
    learning_rate: float = 0.1
    batch_size: int = 2048
    min_count: int = 1
    power: float = 0.75


def learn_vectors(
    sentences: Sequence[Sequence[int]],
    vocab_size: int,
    options: VectorOptions,
    seed: int,
) -> TokenVectors:
    """Learn a vector for each token of a vocabulary from encoded text.

    **Determinism**: on the CPU the vectors depend on the arguments alone.

    Args:
        sentences: Token ids of every sentence, without special tokens.
        vocab_size: Number of ids V.
        options: Settings.
        seed: Seed of initialisation, order and random tokens.

    Returns:
        Vectors [V, width]; tokens that do not occur keep their initial noise and count as unknown.

    Raises:
        DataError: No sentence has two tokens.
    """
    rows = [np.asarray(sentence, dtype=np.int64) for sentence in sentences]
    counts = np.bincount(np.concatenate([[], *rows]).astype(np.int64), minlength=vocab_size)
    rows = [row for row in rows if len(row) > 1]
    if not rows:
        raise DataError("no sentence of two tokens or more to learn token vectors from")
    generator = torch.Generator().manual_seed(seed)
    model = _Vectors(vocab_size, options.width, generator)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=options.learning_rate)
    sampling = torch.from_numpy(counts.astype(np.float64) ** options.power)
    tokens = _Text(rows, options.window_tokens)
    for epoch in range(options.epochs):
        rng = np.random.default_rng([seed, epoch])
        for centers_B, around_BW in tokens.batches(options.batch_size, rng):
            num_drawn = len(centers_B) * options.negatives
            noise = torch.multinomial(sampling, num_drawn, replacement=True, generator=generator)
            noise_BN = noise.view(-1, options.negatives)
            loss = model.loss(options.kind, centers_B, around_BW, noise_BN)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    vectors = model.inputs.weight.detach().numpy().astype(np.float32)
    return TokenVectors(vectors, counts, max(1, options.min_count))


class _Vectors(nn.Module):
    """Input and output vectors of all tokens."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.inputs = nn.Embedding(vocab_size, width)
        self.outputs = nn.Embedding(vocab_size, width)
        with torch.no_grad():
            self.inputs.weight.uniform_(-0.5 / width, 0.5 / width, generator=generator)
            # As in word2vec: small random inputs, zero outputs.
            self.outputs.weight.zero_()

    def loss(
        self,
        kind: VectorKind,
        centers_B: Tensor,
        around_BW: Tensor,
        noise_BN: Tensor,
    ) -> Tensor:
        """Compute the negative-sampling loss; context positions without a token hold -1."""
        valid_BW = around_BW >= 0
        # -1 is no index; masked positions look up token 0 and are multiplied by zero.
        around_BW = around_BW.clamp(min=0)
        count_B = valid_BW.sum(1).clamp(min=1)
        if kind == "cbow":
            summed_BK = (self.inputs(around_BW) * valid_BW[..., None]).sum(1)
            query_BK = summed_BK / count_B[:, None]
            likely_B = F.logsigmoid((query_BK * self.outputs(centers_B)).sum(1))
        else:
            query_BK = self.inputs(centers_B)
            true_BW = torch.einsum("bk,bwk->bw", query_BK, self.outputs(around_BW))
            likely_B = (F.logsigmoid(true_BW) * valid_BW).sum(1) / count_B
        false_BN = torch.einsum("bk,bnk->bn", query_BK, self.outputs(noise_BN))
        return -(likely_B.mean() + F.logsigmoid(-false_BN).sum(1).mean())


class _Text:
    """All tokens with their contexts."""

    def __init__(self, rows: Sequence[IntArray], window: int) -> None:
        self._window = window
        # a window's width of padding between sentences, so that no window reaches into the next
        gap = np.full(window, -1, dtype=np.int64)
        self._flat = np.concatenate([gap, *(part for row in rows for part in (row, gap))])
        self._positions = np.flatnonzero(self._flat >= 0)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate once over the text in random order, with windows of random width as in word2vec."""
        order = rng.permutation(self._positions)
        offsets = np.array([o for o in range(-self._window, self._window + 1) if o])
        for start in range(0, len(order), size):
            positions = order[start : start + size]
            widths = rng.integers(1, self._window + 1, size=len(positions))
            around = self._flat[positions[:, None] + offsets]
            around[np.abs(offsets)[None, :] > widths[:, None]] = -1
            has_any = (around >= 0).any(axis=1)
            centers = self._flat[positions[has_any]]
            yield torch.from_numpy(centers), torch.from_numpy(around[has_any])
