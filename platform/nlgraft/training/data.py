"""Batches from encoded corpora, for training and for measuring losses.

Nothing is dropped: a sequence that is too long is cut, counted and reported. Which examples share a batch and
what is drawn for them (one of several sources, a sampled segmentation) depends on the seed and the epoch
alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nlgraft.errors import DataError
from nlgraft.evaluation.inputs import Inputs, Stream, pack, stream_lengths
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.frozen_states import FrozenStates
from nlgraft.text.batches import PaddingReport, Ragged, TokenBatches
from nlgraft.text.tokenizers import PAD, SentencePiece
from nlgraft.training.losses import segment_losses
from nlgraft.training.seeds import derive_seed, generator_for
from nlgraft.training.views import Encoded, IntArray, Side, View, join, prepare_side, take

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SampledText:
    """A stream that is segmented anew each epoch (unigram sampling, BPE dropout).

    Attributes:
        lines: Its text.
        tokenizer: The tokenizer.
        alpha: Smoothing of unigram sampling, or the dropout probability of BPE.
    """

    lines: Sequence[str]
    tokenizer: SentencePiece
    alpha: float

    def sample(self, seed: int) -> Ragged:
        """Segment all lines.

        Args:
            seed: Another one gives other segmentations.

        Returns:
            Ids of every line.
        """
        return Ragged.of(self.tokenizer.encode(list(self.lines), self.alpha, seed % 2**32))


@dataclass(frozen=True)
class _Epoch:
    """An epoch's sequences as the model sees them."""

    index: int
    sources: Sequence[Stream]
    contexts: Mapping[str, Stream]
    target: Ragged
    batches: TokenBatches


class Seq2SeqData:
    """Examples with sources, contexts and a target, as batches.

    Attributes:
        view: What a batch holds.
        num_cut: By stream, how many sequences were longer than their side allows.
    """

    def __init__(
        self,
        encoded: Encoded,
        view: View,
        *,
        batch_tokens: int,
        seed: int = 0,
        sampled: Mapping[str, SampledText] | None = None,
        states: Mapping[str, FrozenStates] | None = None,
    ) -> None:
        """Set up the batches of a split.

        Args:
            encoded: The split's ids.
            view: What a batch holds.
            batch_tokens: Most padded positions of a batch on any one side.
            seed: Of batches and of what is drawn.
            sampled: Streams segmented anew each epoch, by role.
            states: Precomputed states of a frozen encoder that take the place of a stream's tokens, by role;
                they were computed from the sequences with what the encoder wants around them.

        Raises:
            DataError: A stream of the view is missing or has another number of examples, or there are none.
        """
        self.view = view
        self.num_cut: dict[str, int] = {}
        self._encoded, self._batch_tokens, self._seed = encoded, batch_tokens, seed
        self._sampled, self._states = dict(sampled or {}), dict(states or {})
        replaced = {role: len(text.lines) for role, text in self._sampled.items()}
        replaced |= {role: len(stream) for role, stream in self._states.items()}
        for role, count in replaced.items():
            if count != len(encoded):
                raise DataError(f"stream '{role}' has {count} sequences, not {len(encoded)} as the others")
        if view.is_one_source_drawn and any(side.stream in self._states for side in view.sources):
            raise DataError("is_one_source_drawn draws among token sources; precomputed states are given")
        self._fixed = {
            side.stream: encoded.stream(side.stream) for side in view.sides() if side.stream not in replaced
        }
        self._current = self._make_epoch(0)
        for role, num_cut in self.num_cut.items():
            if num_cut:
                _LOG.warning("%s: %d of %d sequences were cut", role, num_cut, len(encoded))

    def __len__(self) -> int:
        return len(self._encoded)

    def epoch(self, index: int) -> list[IntArray]:
        """Give the rows of each global batch of an epoch, in training order.

        Args:
            index: Number of the epoch, from 0.

        Returns:
            Example numbers of every batch.
        """
        return self._at(index).batches.epoch(index)

    def batch(self, rows: IntArray, epoch: int) -> Batch:
        """Make the batch of some rows.

        Args:
            rows: Example numbers [B].
            epoch: For which epoch: what is drawn depends on it.

        Returns:
            The batch, on the CPU.
        """
        now = self._at(epoch)
        sources = [pack(source, rows) for source in now.sources]
        output = pack(now.target, rows)
        shifted = torch.full_like(output.ids, self.view.target_start)
        shifted[:, 1:] = output.ids[:, :-1]
        target_input = Tokens(shifted.where(output.valid, PAD), output.valid)
        contexts = {name: pack(stream, rows) for name, stream in now.contexts.items()}
        return Batch(sources, target_input, output.ids, contexts)

    def in_order(self) -> Iterator[tuple[IntArray, Batch]]:
        """Go through all examples once, always the same: for losses and decoding.

        Returns:
            Example numbers and batch, longest first; what is drawn by epoch is that of epoch 0.
        """
        return ((rows, self.batch(rows, 0)) for rows in self._at(0).batches.in_order())

    def inputs(self) -> Inputs:
        """Give what a model reads of these examples, for decoding them.

        Returns:
            Sources and contexts; for one source drawn per example, those drawn in epoch 0.
        """
        now = self._at(0)
        return Inputs(now.sources, now.contexts)

    def padding(self, index: int = 0) -> PaddingReport:
        """Measure how much of an epoch's batches is text.

        Args:
            index: Number of the epoch.

        Returns:
            The share of real positions.
        """
        now = self._at(index)
        return now.batches.padding(now.batches.epoch(index))

    def _at(self, index: int) -> _Epoch:
        if self._current.index != index:
            is_fixed = not self._sampled and not self.view.is_one_source_drawn
            self._current = replace(self._current, index=index) if is_fixed else self._make_epoch(index)
        return self._current

    def _make_epoch(self, index: int) -> _Epoch:
        streams = self._fixed | {
            role: text.sample(derive_seed(self._seed, "segmentation", role, index))
            for role, text in self._sampled.items()
        }
        sources = [
            self._prepare(side, streams, is_optional=len(self.view.sources) > 1) for side in self.view.sources
        ]
        contexts = {name: self._prepare(side, streams) for name, side in self.view.contexts.items()}
        target, self.num_cut[self.view.target.stream] = prepare_side(
            streams[self.view.target.stream], self.view.target
        )
        if self.view.is_one_source_drawn:
            sources = [self._draw_source(index, sources)]
        lengths = [stream_lengths(stream) for stream in (*sources, *contexts.values(), target)]
        batches = TokenBatches(np.stack(lengths, axis=1), self._batch_tokens, self._seed)
        return _Epoch(index, sources, contexts, target, batches)

    def _prepare(self, side: Side, streams: Mapping[str, Ragged], *, is_optional: bool = False) -> Stream:
        if side.stream in self._states:
            return self._states[side.stream]
        ready, self.num_cut[side.stream] = prepare_side(
            streams[side.stream], side, is_empty_absent=is_optional
        )
        return ready

    def _draw_source(self, index: int, sources: Sequence[Stream]) -> Ragged:
        """Draw a source for every example, with equal probability among those it has."""
        streams = [stream for stream in sources if isinstance(stream, Ragged)]
        is_there_NK = np.stack([stream.lengths > 0 for stream in streams], axis=1)
        is_there_NK[~is_there_NK.any(1), 0] = True
        random_N = generator_for(self._seed, "one source", index).random(len(self))
        wanted_N = np.floor(random_N * is_there_NK.sum(1)).astype(np.int64) + 1
        drawn_N = (np.cumsum(is_there_NK, axis=1) == wanted_N[:, None]).argmax(1)
        return take(join(streams), drawn_N * len(self) + np.arange(len(self)))


def dev_loss(data: Seq2SeqData, device: torch.device | str = "cpu") -> Callable[[Any], dict[str, float]]:
    """Make the function that measures the loss on a split, for ``train(evaluate=...)``.

    Args:
        data: The dev split.
        device: Where the model is.

    Returns:
        A function from a model to ``{"dev/loss": nats per target token, without smoothing}``.
    """
    return lambda model: {"dev/loss": segment_losses(model, data.in_order(), len(data), device).per_token}
