"""Rows of new tokens, fitted so that a model's states are those that the old tokens gave it.

A context is read twice: in the old segmentation by the model as it was, in the new one by the model with new
rows. Wherever a token ends in both, the hidden states should be equal. All but the new rows is frozen.

Source: Dobler, Elliott and de Melo (2025), Token Distillation, and the released code. Differs: the new
tokenizer itself segments the contexts, so that a replaced vocabulary has some, too; a token learns from as
many contexts as the text has.

Shape letters: V tokens of a vocabulary, N lines, E edges (places at which a token ends in both
segmentations), M contexts, B contexts of a batch, T positions, P positions at edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.evaluation.inputs import pack
from nlgraft.evaluation.shares import SHARE
from nlgraft.nn.batch import Tokens
from nlgraft.nn.modes import evaluating
from nlgraft.nn.transformers_lms import TransformersCausalLM
from nlgraft.text.batches import Ragged
from nlgraft.training.losses import Loss
from nlgraft.training.views import IntArray, surround
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary


def text_sizes(vocabulary: Vocabulary) -> IntArray:
    """Measure the text of every token in bytes, boundaries of words included, [V]."""
    tokens = vocabulary.tokens
    sizes = [tok and len(tok.core) + bool(tok.starts_word) + bool(tok.ends_word) for tok in tokens]
    return np.array([size or 0 for size in sizes], dtype=np.int64)


class _Segmented:
    """Lines of a text in one vocabulary, each behind its begin, a token without text."""

    def __init__(self, lines: Ragged, begin: int, sizes_V: IntArray) -> None:
        self.begin, self.lines = begin, surround(lines, (begin,), ())
        sizes = sizes_V[self.lines.values]
        sizes[self.lines.offsets[:-1]] = 0
        ends = np.cumsum(sizes)
        total_N = ends[self.lines.offsets[1:] - 1]
        self.num_left = np.repeat(total_N, self.lines.lengths) - ends
        """Bytes of the line behind each token, 0 behind the last."""

    @property
    def num_bytes(self) -> IntArray:
        """Size of every line, [N]."""
        return self.num_left[self.lines.offsets[:-1]]

    def keys(self, stride: int) -> IntArray:
        """Number the ends of all tokens; equal numbers are equal places in the text."""
        # From the end, since one of two tokenizers may put a space before a line.
        line = np.repeat(np.arange(len(self.lines)), self.lines.lengths)
        keys = line * stride + stride - 1 - self.num_left
        keys[self.lines.offsets[:-1]] = np.arange(len(self.lines)) * stride
        return keys

    def mark(self, places_E: IntArray) -> None:
        """Remember the tokens, by their places in all lines, that end at edges."""
        self.places = places_E
        flags = np.zeros(len(self.lines.values), dtype=np.int32)
        flags[places_E] = 1
        self._flags = Ragged(flags, self.lines.offsets)

    def lengths(self, first_M: IntArray, last_M: IntArray) -> IntArray:
        """Count the tokens between edges, [M]."""
        return self.places[last_M] - self.places[first_M]

    def pack(self, first_B: IntArray, last_B: IntArray) -> tuple[Tokens, Tensor]:
        """Pack contexts behind a begin each, and a mask of their edges, both [B, T]."""
        starts, lengths, rows = self.places[first_B], self.lengths(first_B, last_B), np.arange(len(first_B))
        tokens = pack(surround(self.lines.parts(starts + 1, lengths), (self.begin,), ()), rows)
        # Another text may end at the first edge; here a begin stands in for it.
        flags, _ = self._flags.parts(starts, lengths + 1).padded(rows)
        return tokens, torch.from_numpy(flags == 1) & tokens.valid


@dataclass(frozen=True)
class ContextBatch:
    """Contexts in the old and the new segmentation, and masks of their edges, as many in both."""

    old: Tokens
    new: Tokens
    is_old_edge: Tensor
    is_new_edge: Tensor

    def to(self, device: torch.device | str) -> ContextBatch:
        """Move to a device."""
        return ContextBatch(*(part.to(device) for part in vars(self).values()))


class AlignedText:
    """Lines of a text in two segmentations."""

    def __init__(self, lines: Sequence[Ragged], begins: Sequence[int], sizes: Sequence[IntArray]) -> None:
        """Align the text.

        Args:
            lines: Bare ids of each line in the old vocabulary and in the new one.
            begins: Token that begins a text in each.
            sizes: Bytes of the tokens of each, [V].
        """
        self.old, self.new = map(_Segmented, lines, begins, sizes)
        totals = self.old.num_bytes, self.new.num_bytes
        stride = int(np.max(totals, initial=0)) + 2
        keys = self.old.keys(stride), self.new.keys(stride)
        edges, *places = np.intersect1d(*keys, return_indices=True)
        # A line that a tokenizer normalises is another text; a space before it is none.
        is_same_text = np.abs(np.subtract(*totals))[edges // stride] <= 1
        self._line_E = edges[is_same_text] // stride
        self.begins: IntArray = np.flatnonzero(edges[is_same_text] % stride == 0)
        """The edges at which lines begin."""
        for side, place in zip((self.old, self.new), places, strict=True):
            side.mark(place[is_same_text])

    def replaced(self, is_new_V: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
        """Find new tokens that stand for several old ones: edges at which they end, and their ids, [M]."""
        ids_E = self.new.lines.values[self.new.places].astype(np.int64)
        first = np.arange(len(ids_E) - 1)
        is_one = self.new.lengths(first, first + 1) == 1
        is_one &= (self.old.lengths(first, first + 1) > 1) & np.equal(
            *map(self._line_E.take, (first, first + 1))
        )
        edges = first[is_one & is_new_V[ids_E[1:]]] + 1
        return edges, ids_E[edges]

    def windows(self, first_M: IntArray, last_M: IntArray, max_tokens: int) -> tuple[IntArray, IntArray]:
        """Widen pieces of text between two edges to ``max_tokens`` old tokens at most, half of them before.

        Returns:
            The edges at which each begins and ends, [M].
        """
        places, line = self.old.places, self._line_E[last_M]
        begin, end = self.old.lines.offsets[line], self.old.lines.offsets[line + 1] - 1
        free = np.maximum(max_tokens - self.old.lengths(first_M, last_M), 0)
        before = np.minimum(places[first_M] - begin, free // 2)
        last = np.minimum(places[last_M] + free - before, end)
        return np.searchsorted(places, places[first_M] - before), np.searchsorted(places, last, "right") - 1

    def pack(self, first_B: IntArray, last_B: IntArray) -> ContextBatch:
        """Pack contexts in both segmentations, on the CPU."""
        (old, is_old_edge), (new, is_new_edge) = (side.pack(first_B, last_B) for side in (self.old, self.new))
        return ContextBatch(old, new, is_old_edge, is_new_edge)


def draw(ids_M: IntArray, most: int, seed: int) -> IntArray:
    """Draw at most so many of the occurrences of each token; returns their numbers."""
    order = np.random.default_rng(seed).permutation(len(ids_M))
    order = order[np.argsort(ids_M[order], kind="stable")]
    rank = np.arange(len(order)) - np.searchsorted(ids_M[order], ids_M[order])
    return order[rank < most]


class Contexts:
    """Training data: pieces of an aligned text, widened, in a new order in every epoch."""

    def __init__(
        self,
        text: AlignedText,
        pieces: tuple[IntArray, IntArray],
        *,
        max_tokens: int,
        num_contexts: int,
        seed: int,
    ) -> None:
        """Set up the batches.

        Args:
            text: The text.
            pieces: Edges at which each piece begins and ends, [M].
            max_tokens: Longest context in old tokens.
            num_contexts: Contexts of a batch.
            seed: Seed of the order.
        """
        self._text, self._num_contexts, self._seed = text, num_contexts, seed
        self._first_M, self._last_M = text.windows(*pieces, max_tokens)

    def epoch(self, index: int) -> list[IntArray]:
        """List the contexts of each batch of an epoch."""
        order = np.random.default_rng([self._seed, index]).permutation(len(self._first_M))
        return np.split(order, range(self._num_contexts, len(order), self._num_contexts))

    def batch(self, rows: IntArray, epoch: int) -> ContextBatch:
        """Pack some contexts, on the CPU."""
        return self._text.pack(self._first_M[rows], self._last_M[rows])

    @property
    def longest(self) -> int:
        """Tokens of the longest context in either segmentation, its begin included."""
        sides = self._text.old, self._text.new
        return 1 + max(int(side.lengths(self._first_M, self._last_M).max(initial=0)) for side in sides)


@dataclass(frozen=True)
class TokenDistillation:
    """Mean squared distance of the hidden states at edges; a table of output rows learns to predict tokens.

    Attributes:
        teacher: The model as it was, on the device of the training.
        layer: Hidden state that is compared; -1 the last, 0 the embeddings.
    """

    teacher: TransformersCausalLM
    layer: int = -1

    def __call__(self, model: TransformersCausalLM, batch: ContextBatch) -> Loss:
        """Compute the loss of a batch, summed over its edges."""
        model.eval()  # What is frozen has no dropout.
        with torch.no_grad():
            teacher = _read(self.teacher.model.base_model, batch.old)
        head = model.model.get_output_embeddings()
        if head.weight is model.input_table:
            student, predicted = _read(model.model.base_model, batch.new), 0.0
        else:
            # Output rows learn from states that they do not change, as in the released code.
            cut = head.register_forward_pre_hook(lambda _, states: (states[0].detach(),))
            student = _read(model.model, batch.new)
            cut.remove()
            is_predicted = batch.new.valid[:, 1:]
            logits_PV = student.logits[:, :-1][is_predicted]
            tokens_P = batch.new.ids[:, 1:][is_predicted]
            predicted = F.cross_entropy(logits_PV.float(), tokens_P, reduction="sum")
        student_PD = student.hidden_states[self.layer][batch.is_new_edge]
        teacher_PD = teacher.hidden_states[self.layer][batch.is_old_edge]
        distance_P = (student_PD.float() - teacher_PD.float()).square().mean(1)
        return Loss(distance_P.sum() + predicted, len(distance_P))


def _read(model: Any, tokens: Tokens) -> Any:
    return model(input_ids=tokens.ids, use_cache=False, output_hidden_states=True)


def measure_contexts(
    objective: TokenDistillation, model: TransformersCausalLM, contexts: Contexts, device: torch.device | str
) -> NDArray[np.float64]:
    """Compute loss and number of edges of every batch of contexts, all workers together, [batches, 2]."""
    share = SHARE.get()
    with evaluating(model):
        losses = [
            objective(model, contexts.batch(rows, 0).to(device)) for rows in share.of(contexts.epoch(0))
        ]
    mine = np.array([[float(loss.loss_sum), loss.num_tokens] for loss in losses])
    return np.concatenate(share.gather(mine.reshape(-1, 2)))
