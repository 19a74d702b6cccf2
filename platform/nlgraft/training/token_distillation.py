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

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.evaluation.inputs import pack
from nlgraft.nn.batch import Movable, Tokens
from nlgraft.nn.transformers_lms import TransformersCausalLM
from nlgraft.text.batches import Ragged
from nlgraft.training.losses import Loss
from nlgraft.training.views import IntArray, surround
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary


def text_sizes(vocabulary: Vocabulary) -> IntArray:
    """Measure the text of every token in bytes, boundaries of words included, [V]."""
    return np.array(
        [
            0 if tok is None else len(tok.core) + bool(tok.starts_word) + bool(tok.ends_word)
            for tok in vocabulary.tokens
        ]
    )


@dataclass(frozen=True)
class ContextBatch(Movable):
    """Contexts in the old and the new segmentation, and masks of their edges [B, T], as many in both."""

    old: Tokens
    new: Tokens
    is_old_edge: Tensor
    is_new_edge: Tensor


class Segmented:
    """Lines of a text in one vocabulary, each behind a begin, which has no text."""

    def __init__(
        self,
        lines: Ragged,
        begin: int,
        sizes_V: IntArray,
    ) -> None:
        """Take the text.

        Args:
            lines: Bare ids of each line.
            begin: Token that begins a text.
            sizes_V: Bytes of every token.
        """
        self._begin, self.lines = begin, surround(lines, (begin,), ())
        first_N = self.lines.offsets[:-1]
        sizes = sizes_V[self.lines.values]
        sizes[first_N] = 0
        ends = np.cumsum(sizes)
        self._num_behind = np.repeat(ends[self.lines.offsets[1:] - 1], self.lines.lengths) - ends
        self.num_bytes = self._num_behind[first_N]
        """Size of every line, [N]."""

    def keys(self, stride: int) -> IntArray:
        """Number the ends of all tokens, ``stride`` numbers a line; equal places in the text are equal."""
        line_N = np.arange(len(self.lines)) * stride
        # From the end, since one of two tokenizers may put a space before a line.
        keys = np.repeat(line_N, self.lines.lengths) + stride - 1 - self._num_behind
        keys[self.lines.offsets[:-1]] = line_N
        return keys

    def mark(self, places_E: IntArray) -> None:
        """Remember the tokens, by their places in all lines, that end at edges."""
        self.places = places_E
        is_edge = np.zeros(len(self.lines.values), dtype=np.int32)
        is_edge[places_E] = 1
        self._is_edge = Ragged(is_edge, self.lines.offsets)

    def lengths(self, first_M: IntArray, last_M: IntArray) -> IntArray:
        """Count the tokens between edges, [M]."""
        return self.places[last_M] - self.places[first_M]

    def pack(self, first_B: IntArray, last_B: IntArray) -> tuple[Tokens, Tensor]:
        """Pack contexts behind a begin, which stands for their first edge, and masks of edges, [B, T]."""
        starts, lengths, rows = self.places[first_B], self.lengths(first_B, last_B), np.arange(len(first_B))
        tokens = pack(surround(self.lines.parts(starts + 1, lengths), (self._begin,), ()), rows)
        is_edge, is_real = self._is_edge.parts(starts, lengths + 1).padded(rows)
        return tokens, torch.from_numpy((is_edge == 1) & is_real)


class AlignedText:
    """Lines of a text in the old and the new segmentation."""

    def __init__(self, old: Segmented, new: Segmented) -> None:
        """Find the edges."""
        self.old, self.new = old, new
        stride = int(np.max([old.num_bytes, new.num_bytes], initial=0)) + 2
        keys = old.keys(stride), new.keys(stride)
        edges, old_places, new_places = np.intersect1d(*keys, return_indices=True)
        # A line that a tokenizer normalises is another text; a space before it is none.
        is_same_text = (np.abs(old.num_bytes - new.num_bytes) <= 1)[edges // stride]
        old.mark(old_places[is_same_text])
        new.mark(new_places[is_same_text])
        self.line_E = edges[is_same_text] // stride
        """Line of each edge."""
        self.begins: IntArray = np.flatnonzero(edges[is_same_text] % stride == 0)
        """The edges at which lines begin."""

    def replaced(self, is_new_V: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
        """Find new tokens that stand for several old ones: edges at which they end, and their ids, [M]."""
        ids_E = self.new.lines.values[self.new.places].astype(np.int64)
        last = np.arange(1, len(ids_E))
        is_replaced = is_new_V[ids_E[1:]] & (self.line_E[1:] == self.line_E[:-1])
        is_replaced &= (self.new.lengths(last - 1, last) == 1) & (self.old.lengths(last - 1, last) > 1)
        return last[is_replaced], ids_E[1:][is_replaced]


def draw(ids_M: IntArray, most: int, seed: int) -> IntArray:
    """Draw at most so many of the occurrences of each token; returns their numbers."""
    order = np.random.default_rng(seed).permutation(len(ids_M))
    order = order[np.argsort(ids_M[order], kind="stable")]
    rank = np.arange(len(order)) - np.searchsorted(ids_M[order], ids_M[order])
    return order[rank < most]


class Contexts:
    """Training data: pieces of an aligned text with what surrounds them, in a new order in every epoch."""

    def __init__(
        self,
        text: AlignedText,
        pieces: tuple[IntArray, IntArray],
        *,
        max_tokens: int,
        num_contexts: int,
        seed: int,
    ) -> None:
        """Widen pieces to contexts, half of the further tokens before each, unless it begins the line.

        Args:
            text: The text.
            pieces: Edges at which each piece begins and ends, [M].
            max_tokens: Longest context in old tokens.
            num_contexts: Contexts of a batch.
            seed: Seed of the order.
        """
        self._sides, self._num_contexts, self._seed = (text.old, text.new), num_contexts, seed
        places, line_M = text.old.places, text.line_E[pieces[1]]
        begin_M, end_M = text.old.lines.offsets[line_M], text.old.lines.offsets[line_M + 1] - 1
        free_M = np.maximum(max_tokens - text.old.lengths(*pieces), 0)
        first_M, last_M = (places[edges] for edges in pieces)
        before_M = np.minimum(first_M - begin_M, free_M // 2)
        self._first_M = np.searchsorted(places, first_M - before_M)
        last_M = np.minimum(last_M + free_M - before_M, end_M)
        self._last_M = np.searchsorted(places, last_M, "right") - 1

    def epoch(self, index: int) -> list[IntArray]:
        """List the contexts of each batch of an epoch."""
        order = np.random.default_rng([self._seed, index]).permutation(len(self._first_M))
        return np.split(order, range(self._num_contexts, len(order), self._num_contexts))

    def batch(self, rows: IntArray, epoch: int) -> ContextBatch:
        """Pack some contexts in both segmentations, on the CPU."""
        edges = self._first_M[rows], self._last_M[rows]
        (old, is_old_edge), (new, is_new_edge) = (side.pack(*edges) for side in self._sides)
        return ContextBatch(old, new, is_old_edge, is_new_edge)


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
            predicted = F.cross_entropy(logits_PV, tokens_P, reduction="sum")
        student_PD = student.hidden_states[self.layer][batch.is_new_edge]
        teacher_PD = teacher.hidden_states[self.layer][batch.is_old_edge]
        # Autocast computes both losses in fp32.
        distance_P = F.mse_loss(student_PD, teacher_PD, reduction="none").mean(1)
        return Loss(distance_P.sum() + predicted, len(distance_P))


def _read(model: Any, tokens: Tokens) -> Any:
    return model(input_ids=tokens.ids, use_cache=False, output_hidden_states=True)
