"""Text with masked tokens, as batches for training and for scoring.

Shape letters: B lines, T positions of a line with begin and end.
Source: Devlin et al. (2019), section 3.1; whole words as in the authors' later models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.nn.masked_lm_models import NOT_PREDICTED, MaskedBatch
from nlgraft.text.batches import LengthBatches, Ragged, batches_of
from nlgraft.training.seeds import generator_for
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig
from nlgraft.training.views import Encoded, IntArray
from nlgraft.vocab.tokenizers.vocabulary import SUBSTITUTE_ROLES, Vocabulary

TEXT, WORDS, WORD_SIZES = "source 0", "source 0 words", "source 0 word sizes"
"""Streams of a split: tokens of each line, the word number of each token, the characters of each word."""
SCORING_SEED = 0
"""Seed of the words that scoring masks: the same in every trial."""


@dataclass(frozen=True)
class MaskingIds:
    """Ids of a vocabulary that masking needs.

    Attributes:
        pad, unk, mask: Special tokens.
        begin, end: Put around every line.
        normal: Tokens of text: what may replace a masked token.
    """

    pad: int
    unk: int
    mask: int
    begin: int
    end: int
    normal: IntArray

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> MaskingIds:
        """Find the special tokens by their roles; [CLS] and [SEP] may be those of a sentence's ends.

        Raises:
            DataError: A special token is missing.
        """
        ids = {role: _role_id(vocabulary, role) for role in ("pad", "unk", "mask")}
        begin, end = _role_id(vocabulary, "cls"), _role_id(vocabulary, "sep")
        return cls(**ids, begin=begin, end=end, normal=np.flatnonzero(vocabulary.is_normal))


def _role_id(vocabulary: Vocabulary, role: str) -> int:
    for candidate in (role, SUBSTITUTE_ROLES.get(role, role)):
        if candidate in vocabulary.roles:
            return vocabulary.roles[candidate]
    raise DataError(
        f"{vocabulary.name}: no {role} token, so this is not the tokenizer of a masked language model; "
        f"it has {', '.join(sorted(vocabulary.roles)) or 'no special tokens'}"
    )


def choose(
    num_units: int,
    rate: float,
    generator: np.random.Generator,
    turn: int = 0,
) -> NDArray[np.bool_]:
    """Choose the words or tokens (units) of a line to predict, at least one, from their number alone.

    Args:
        num_units: Units of the line.
        rate: Share that is chosen.
        generator: Random generator, a separate one for every line and epoch.
        turn: Number of earlier choices by the same generator, whose units are not chosen again.

    Returns:
        True where a unit is chosen, bool [num_units].
    """
    chosen = np.zeros(num_units, dtype=bool)
    count = max(1, round(rate * num_units))
    order = np.argsort(generator.random(num_units), kind="stable")
    chosen[order[turn * count : (turn + 1) * count]] = True
    return chosen


@dataclass(frozen=True)
class MaskedLine:
    """A line with masked tokens, without begin and end.

    Attributes:
        tokens: True tokens.
        inputs: What the model reads.
        is_predicted: True where the token is predicted.
    """

    tokens: list[int]
    inputs: list[int]
    is_predicted: list[bool]

    def labels(self) -> list[int]:
        """Label each position, begin and end included."""
        pairs = zip(self.tokens, self.is_predicted, strict=True)
        inner = (token if is_predicted else NOT_PREDICTED for token, is_predicted in pairs)
        return [NOT_PREDICTED, *inner, NOT_PREDICTED]


@dataclass(eq=False)
class Masker:
    """Masks tokens of the lines of one vocabulary.

    **Determinism**: which units of a line are chosen depends on the seed, the epoch, the line's number and
    its number of units; for words this is the same in every vocabulary.

    Attributes:
        text: The split, with its words if words are masked.
        ids: Special and normal tokens of its vocabulary.
        masking: Unit and rates of masking.
        seed: Of the choice.
        is_in_turns: If true, every epoch chooses among the units that earlier ones have not, until none
            is left; else each chooses anew.
        tokens: Tokens of each line.
        has_words: True if whole words are masked.
        word_sizes: Characters of each word; only if words are masked.
    """

    text: Encoded
    ids: MaskingIds
    masking: MaskingConfig
    seed: int
    is_in_turns: bool = False

    def __post_init__(self) -> None:
        self.tokens = self.text.stream(TEXT)
        self.has_words = self.masking.unit == "word"
        if self.has_words:
            self._words, self.word_sizes = self.text.stream(WORDS), self.text.stream(WORD_SIZES)

    def __len__(self) -> int:
        return len(self.tokens)

    def units(self, row: int) -> NDArray[np.integer]:
        """Number the unit of each token of a line, [tokens]."""
        return self._words[row] if self.has_words else np.arange(len(self.tokens[row]))

    def chosen(self, row: int, epoch: int) -> NDArray[np.bool_]:
        """Choose units of a line, truncated words included: bool [units]."""
        num_units = len(self.word_sizes[row] if self.has_words else self.tokens[row])
        rate = self.masking.rate
        if self.is_in_turns:
            # The same order in every round, of which each round takes the next units.
            return choose(num_units, rate, generator_for(self.seed, "scored words", row), epoch)
        return choose(num_units, rate, generator_for(self.seed, "words", epoch, row))

    def line(self, row: int, epoch: int) -> MaskedLine:
        """Mask a line as in an epoch."""
        tokens = self.tokens[row]
        if not len(tokens):
            return MaskedLine([], [], [])
        is_predicted = self.chosen(row, epoch)[self.units(row)]
        generator = generator_for(self.seed, "tokens", epoch, row)
        # Drawn for every token, so that a token's fate does not depend on which others are predicted.
        draws = generator.random(len(tokens))
        others = self.ids.normal[generator.integers(0, len(self.ids.normal), len(tokens))]
        masked, replaced = self.masking.masked, self.masking.replaced
        is_masked = is_predicted & (draws < masked)
        is_replaced = is_predicted & ~is_masked & (draws < masked + replaced)
        inputs = np.where(is_masked, self.ids.mask, np.where(is_replaced, others, tokens))
        return MaskedLine(tokens.tolist(), inputs.tolist(), is_predicted.tolist())

    def predicts(self, row: int, epoch: int) -> bool:
        """Tell whether any token of a line is predicted in an epoch: none is of a blank line."""
        return bool(self.chosen(row, epoch)[self.units(row)].any())

    def batch(self, rows: IntArray, epoch: int) -> MaskedBatch:
        """Make the batch of some lines, masked as in an epoch."""
        return self.pack([self.line(int(row), epoch) for row in rows])

    def pack(self, lines: Sequence[MaskedLine]) -> MaskedBatch:
        """Put begin and end around masked lines and make a batch of them."""
        ids = [[self.ids.begin, *line.inputs, self.ids.end] for line in lines]
        return MaskedBatch.of(ids, [line.labels() for line in lines], self.ids.pad)

    def batches(self, batch_tokens: int | LengthBatches, seed: int) -> LengthBatches:
        """Draw up batches of lines of similar length, of at most ``batch_tokens`` padded positions."""
        return batches_of(self.tokens.lengths + 2, batch_tokens, seed)


class MaskedData:
    """Batches of masked lines of similar length: what the training loop reads."""

    def __init__(self, masker: Masker, batch_tokens: int | LengthBatches) -> None:
        """Set up batches of at most ``batch_tokens`` padded positions, or take given ones."""
        self._masker = masker
        self._batches = masker.batches(batch_tokens, masker.seed)

    def epoch(self, index: int) -> Sequence[IntArray]:
        """Draw up the global batches of an epoch; those of which no token is predicted are left out."""
        return [
            rows
            for rows in self._batches.epoch(index)
            if any(self._masker.predicts(int(row), index) for row in rows)
        ]

    def batch(self, rows: IntArray, epoch: int) -> MaskedBatch:
        """Make the batch of some rows."""
        return self._masker.batch(rows, epoch)


class MaskedScoringData:
    """Masked lines for scoring: the same words in all trials and vocabularies.

    Attributes:
        masker: Masks the lines; its epochs are the rounds.
    """

    def __init__(
        self, text: Encoded, ids: MaskingIds, scoring: MaskedScoringConfig, batch_tokens: int
    ) -> None:
        """Set up batches of at most ``batch_tokens`` padded positions."""
        masking = MaskingConfig(unit=scoring.unit, rate=scoring.rate, masked=1.0, replaced=0.0)
        self.masker = Masker(text, ids, masking, SCORING_SEED, is_in_turns=True)
        self._num_rounds = scoring.num_rounds
        self._batches = self.masker.batches(batch_tokens, SCORING_SEED)

    def in_order(self) -> Iterator[tuple[IntArray, MaskedBatch]]:
        """Go through the text round by round, the longest lines first.

        Lines all of whose units have had their turn are left out.
        """
        for index in range(self._num_rounds):
            for rows in self._batches.in_order():
                masked_rows = rows[[bool(self.masker.chosen(int(row), index).any()) for row in rows]]
                if len(masked_rows):
                    yield masked_rows, self.masker.batch(masked_rows, index)

    def characters(self) -> NDArray[np.float64] | None:
        """Count the characters of each line that are predicted, [N]; None where single tokens are masked.

        Words that were cut off are not predicted.
        """
        if not self.masker.has_words:
            return None
        sizes = np.zeros(len(self.masker))
        for row in range(len(self.masker)):
            words = self.masker.word_sizes[row]
            is_there = np.zeros(len(words), dtype=bool)
            is_there[self.masker.units(row)] = True
            chosen = [self.masker.chosen(row, index) for index in range(self._num_rounds)]
            sizes[row] = words[np.any(chosen, axis=0) & is_there].sum()
        return sizes


# Text infilling: spans of a text are masked, and a denoising model reconstructs the text.
#
# Source: Lewis et al. (2020), BART, section 2.2 (text infilling); Liu et al. (2020), mBART, section 2.2:
# spans of Poisson length that cover 35 % of a text, each replaced by one mask. Differs: tokens are masked,
# not whole words, and sentences are not reordered, since examples are single sentences.


def mask_spans(
    ids: Sequence[int],
    mask_id: int,
    *,
    rate: float,
    mean_tokens: float,
    generator: np.random.Generator,
) -> list[int]:
    """Replace spans of a text by one mask each; a span of no tokens inserts a mask.

    Args:
        ids: Token ids.
        mask_id: Id of the mask.
        rate: Share of the tokens that are masked, rounded to whole tokens.
        mean_tokens: Mean length of a span before the last one is cut to the share.
        generator: Random generator, a separate one for every text and epoch.
    """
    num_remaining = round(rate * len(ids))
    spans: list[int] = []
    # Spans of no tokens use up nothing of the share, so the number of spans is limited as well.
    while num_remaining and len(spans) < len(ids):
        spans.append(min(num_remaining, int(generator.poisson(mean_tokens))))
        num_remaining -= spans[-1]
    # The last span was cut to the remaining share; it may stand anywhere.
    generator.shuffle(spans)
    # spans stand anywhere between the tokens that stay: choose places among tokens and spans together
    num_kept = len(ids) - sum(spans)
    places = set(generator.choice(num_kept + len(spans), size=len(spans), replace=False).tolist())
    rest, lengths = iter(ids), iter(spans)
    masked = []
    for place in range(num_kept + len(spans)):
        if place in places:
            for _ in range(next(lengths)):
                next(rest)
            masked.append(mask_id)
        else:
            masked.append(next(rest))
    return masked


@dataclass(frozen=True)
class MaskedSpans:
    """A stream whose spans are masked anew in every epoch.

    **Determinism**: the masked spans of a line depend on the seed, the epoch and the line's number alone.

    Attributes:
        text: The whole lines.
        mask_id: Id of the mask.
        rate: Share of the tokens that are masked.
        mean_tokens: Mean length of a span.
    """

    text: Ragged
    mask_id: int
    rate: float
    mean_tokens: float

    def __len__(self) -> int:
        return len(self.text)

    def epoch(self, index: int, seed: int) -> Ragged:
        """Mask the lines for an epoch."""
        return Ragged.of(
            mask_spans(
                self.text[row].tolist(),
                self.mask_id,
                rate=self.rate,
                mean_tokens=self.mean_tokens,
                generator=generator_for(seed, "masked spans", index, row),
            )
            for row in range(len(self.text))
        )
