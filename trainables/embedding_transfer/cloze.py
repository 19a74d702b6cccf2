"""A masked language model that is the encoder of a translation model, and its use as encoder and decoder.

Shape letters: B lines, T positions of a line with begin and end, D width, V vocabulary.
Source: Devlin et al. (2019), section 3.1; Rothe et al. (2020), section 2 (BERT2BERT).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.model import Seq2Seq
from nlgraft.text.batches import Ragged, TokenBatches
from nlgraft.text.tokenizers import BOS, EOS
from nlgraft.training.losses import freeze_module
from nlgraft.training.seeds import generator_for
from nlgraft.training.views import IntArray as Rows
from nlgraft.training.weights import carry_over
from trainables.embedding_transfer.generator_data import PerturbedData
from trainables.embedding_transfer.generator_training import PerturbedBatch, StateReader
from trainables.embedding_transfer.new_tokens import DEV_EPOCH

HIDDEN, REPLACED = 0.8, 0.1
"""Shares of asked tokens that are hidden behind the mask and replaced by a random token; the rest stays."""
NEW_TOKEN_RATE = 0.5
"""Share of words with generated tokens that are asked (authors' code)."""


class Cloze(nn.Module):
    """The encoder of a model as a masked language model; its output layer is the embedding table.

    Attributes:
        model: A model whose tables are one.
    """

    def __init__(self, model: Seq2Seq) -> None:
        """Take the encoder.

        Args:
            model: With tying ``all``.
        """
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """Read lines with holes.

        Args:
            batch: One source.

        Returns:
            States [B, T, D].
        """
        return self.model.encode(batch.sources).bank[0].states

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary.

        Args:
            hidden: States [..., D].

        Returns:
            Logits [..., V].
        """
        return self.model.logits(hidden)


class ClozeReader(StateReader):
    """What the training of a generator reads states from, when the model is a ``Cloze``'s."""

    def __init__(self, model: Seq2Seq, head: nn.Module | None = None) -> None:
        """Take the model.

        Args:
            model: Its encoder counts.
            head: What stands between its states and its table; frozen here. None: nothing.
        """
        super().__init__(model)
        self.head = None if head is None else freeze_module(head)

    def predicting(self, states: Tensor) -> Tensor:
        """What the output table reads of some states [..., D]."""
        return states if self.head is None else self.head(states)

    def forward(self, batch: Batch, has_encoder_states: bool) -> dict[str, Tensor]:
        """Read lines with holes.

        Args:
            batch: One source.
            has_encoder_states: Always false: there are no other states.

        Returns:
            The encoder's states [B, T, D] in the place of a decoder's.
        """
        assert not has_encoder_states, "a masked language model has one sequence"
        return {"decoder": self.model.encode(batch.sources).bank[0].states}


def encoder_twice(masked: Seq2Seq, config: TransformerConfig, fresh: Seq2Seq) -> Seq2Seq:
    """Begin an encoder-decoder with a masked language model on both sides (BERT2BERT).

    Args:
        masked: The trained model whose encoder counts.
        config: What the encoder-decoder is like: as deep in the decoder as in the encoder.
        fresh: A new model of that configuration; changed in place. It keeps its cross-attention.

    Returns:
        The same, its tables those of the masked model.
    """
    weights = {
        name: tensor
        for name, tensor in masked.state_dict().items()
        if name.startswith(("source_embedding.", "source_input.", "encoder.", "encoder_norm."))
    }
    copies = {
        name.replace("source_", "target_", 1).replace("encoder", "decoder", 1): tensor
        for name, tensor in weights.items()
    }
    output = {
        name: tensor for name, tensor in masked.state_dict().items() if name.startswith("output_projection.")
    }
    assert config.num_encoder_layers == config.num_decoder_layers, "checked where the study is read"
    # a prediction bias belongs to the masked language model unless the other has one, too
    dropped = [] if config.has_output_bias else [r"^output_projection\.bias$"]
    carry_over(fresh, weights | copies | output, fresh=[r"^decoder\.\d+\.cross_"], drop=dropped)
    return fresh


class ClozeData:
    """Batches of lines with holes, of which the hidden tokens are asked.

    **Determinism**: the holes of a line depend on the seed, the epoch and the line's number alone.
    """

    def __init__(
        self,
        text: Ragged,
        *,
        mask_id: int,
        vocab_size: int,
        num_special: int,
        rate: float,
        batch_tokens: int,
        seed: int,
    ) -> None:
        """Set up the data.

        Args:
            text: Lines in token ids, without begin and end.
            mask_id: Id of the mask.
            vocab_size: Number of ids.
            num_special: Ids below this number are special and never replace a token.
            rate: Share of the tokens that are asked, at least one in a line.
            batch_tokens: Most padded positions of a batch.
            seed: Of the order and the holes.
        """
        self._text = text
        self._mask_id = mask_id
        self._range = (num_special, vocab_size)
        self._rate = rate
        self._batches = TokenBatches(text.lengths + 2, batch_tokens, seed)
        self._seed = seed

    def epoch(self, index: int) -> Sequence[Rows]:
        """Give the rows of each global batch of an epoch."""
        return self._batches.epoch(index)

    def in_order(self) -> Iterator[tuple[Rows, Batch]]:
        """Go once through the text, with holes of its own, for evaluation."""
        for rows in self._batches.in_order():
            yield rows, self.batch(rows, DEV_EPOCH)

    def batch(self, rows: Rows, epoch: int) -> Batch:
        """Make the batch of some rows: positions that are asked are its real target positions."""
        true, read, is_asked = [], [], []
        for row in rows.tolist():
            ids = self._text[row].astype(np.int64)
            generator = generator_for(self._seed, "cloze", epoch, row)
            asked = generator.random(len(ids)) < self._rate
            if len(ids):
                asked[generator.integers(len(ids))] |= not asked.any()
            fate = generator.random(len(ids))
            seen = np.where(asked & (fate < HIDDEN), self._mask_id, ids)
            is_random = asked & (fate >= HIDDEN) & (fate < HIDDEN + REPLACED)
            seen = np.where(is_random, generator.integers(*self._range, len(ids)), seen)
            true.append([BOS, *ids.tolist(), EOS])
            read.append([BOS, *seen.tolist(), EOS])
            is_asked.append([0, *asked.astype(int).tolist(), 0])
        asked_BT = Tokens.from_lists(is_asked).ids.bool()
        labels = Tokens.from_lists(true).ids
        source = Tokens.from_lists(read)
        return Batch([source], Tokens(source.ids, asked_BT), labels)


class ClozePerturbedData(PerturbedData):
    """Lines in two segmentations with the same words hidden, for the generator of a masked language model.

    Words are hidden whole, in both segmentations; what is asked are the tokens of the changed one, those that
    the vocabulary lacks among them.
    """

    def __init__(self, *arguments: Any, mask_id: int, rate: float, **settings: Any) -> None:
        """Set up the data.

        Args:
            *arguments: As ``PerturbedData`` takes them.
            mask_id: Id of the mask.
            rate: Share of the words that are asked; of words with new tokens it is half.
            **settings: As ``PerturbedData`` takes them.
        """
        super().__init__(*arguments, **settings)
        self._mask_id = mask_id
        self._rate = rate
        self._vocab_size = len(self._perturbers["decoder"].vocabulary)

    def batch(self, rows: Rows, epoch: int) -> PerturbedBatch:
        """Make the batch of some rows."""
        plain = super().batch(rows, epoch)
        original, perturbed = plain.original.target_input, plain.perturbed.target_input
        words = plain.perturbed_words["decoder"]
        is_new_BS = perturbed.ids >= self._vocab_size
        chosen_BW = torch.zeros(len(rows), int(words.max().clamp(min=0)) + 1, dtype=torch.bool)
        for number, row in enumerate(rows.tolist()):
            own = int(words[number].max()) + 1
            generator = generator_for(self._seed, "cloze", epoch, row)
            rates = np.full(own, self._rate)
            rates[words[number][is_new_BS[number]].numpy()] = NEW_TOKEN_RATE
            chosen = generator.random(own) < rates
            if own:
                chosen[generator.integers(own)] |= not chosen.any()
            chosen_BW[number, :own] = torch.from_numpy(chosen)
        return PerturbedBatch(
            self._hidden(original, plain.original_words["decoder"], chosen_BW),
            self._hidden(perturbed, words, chosen_BW),
            plain.new_tokens,
            plain.original_words,
            plain.perturbed_words,
        )

    def _hidden(self, tokens: Tokens, words_BT: Tensor, chosen_BW: Tensor) -> Batch:
        """Hide the chosen words of a sequence, and ask for them."""
        asked_BT = chosen_BW.gather(1, words_BT.clamp(min=0)) & (words_BT >= 0)
        source = Tokens(tokens.ids.masked_fill(asked_BT, self._mask_id), tokens.valid)
        return Batch([source], Tokens(source.ids, asked_BT), tokens.ids)
