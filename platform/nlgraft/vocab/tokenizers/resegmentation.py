"""Text in other segmentations: words are split and merged at random, and the text stays the same.

Source: Liu et al. (2021), section 3.3; probabilities from the authors' code, without its defects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from nlgraft.text.tokenizer_config import SegmentationRates
from nlgraft.vocab.tokenizers.vocabulary import (
    Kind,
    Tok,
    Vocabulary,
    character_boundaries,
    merge_toks,
    split_tok,
)

IdOrTok = int | Tok
"""A vocabulary id, or an out-of-vocabulary token."""


@dataclass(frozen=True)
class Resegmented:
    """A sentence in another segmentation.

    Attributes:
        tokens: Its tokens.
        words: Word number of each token.
        original_words: Word number of each token of the segmentation before.
    """

    tokens: list[IdOrTok]
    words: list[int]
    original_words: list[int]


class Resegmenter:
    """Splits and merges the tokens of words, some of which are then outside the vocabulary.

    Attributes:
        vocabulary: The vocabulary.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        rates: SegmentationRates,
        max_tokens: int | None = None,
    ) -> None:
        """Take the vocabulary and how often its tokens are split and merged.

        A sentence that would have more than ``max_tokens``, without begin and end, is left unchanged.
        """
        self.vocabulary = vocabulary
        self._rates = rates
        self._max_tokens = max_tokens

    @cached_property
    def _boundaries(self) -> list[list[int]]:
        """Possible cuts of each token; cached, since millions of sentences are perturbed."""
        return [
            character_boundaries(tok.core) if tok is not None and tok.kind is Kind.NORMAL else []
            for tok in self.vocabulary.tokens
        ]

    def words(self, ids: Sequence[int]) -> list[int]:
        """Number the words of a sentence without begin and end, from 0, by the marks of its tokens."""
        numbers: list[int] = []
        current, is_open = -1, False
        is_marked = bool(self.vocabulary.marking.continuation_prefix)
        for identity in ids:
            tok = self.vocabulary.tokens[identity]
            # if word-internal pieces are marked, an unmarked one starts a word (punctuation, unknown token)
            starts = tok is not None and (tok.starts_word or (is_marked and tok.starts_word is None))
            if not is_open or starts:
                current += 1
            # without end-of-word marks a word extends to the next word start
            is_open = tok is None or tok.ends_word is not True
            numbers.append(current)
        return numbers

    def perturb(
        self,
        ids: Sequence[int],
        generator: np.random.Generator,
        is_kept: Sequence[bool] = (),
    ) -> Resegmented:
        """Split or merge tokens at random; the text stays the same.

        Args:
            ids: Vocabulary ids of a sentence, without begin and end.
            generator: Source of randomness; one of its own for every sentence and epoch.
            is_kept: True for tokens whose words must not be changed; empty: none.
        """
        tokens: list[IdOrTok] = []
        numbers: list[int] = []
        start, original_words = 0, self.words(ids)
        for word, count in Counter(original_words).items():
            end = start + count
            changed: Sequence[IdOrTok] = ids[start:end]
            if not any(is_kept[start:end]):
                changed = self._change_word(ids[start:end], generator.random)
            tokens.extend(changed)
            numbers.extend([word] * len(changed))
            start = end
        if self._max_tokens is not None and len(tokens) > max(self._max_tokens, len(ids)):
            tokens, numbers = [*ids], original_words
        return Resegmented(tokens, numbers, original_words)

    def _change_word(self, ids: Sequence[int], draw: Callable[[], float]) -> list[IdOrTok]:
        """Split tokens of a word; where none was split, merge some."""
        pieces = [piece for identity in ids for piece in self._split(identity, draw)]
        # A word is not merged as well, which could undo its cuts.
        if len(pieces) > len(ids):
            return pieces
        return self._merge(ids, draw)

    def _split(self, identity: int, draw: Callable[[], float]) -> list[IdOrTok]:
        boundaries, rates = self._boundaries[identity], self._rates
        num_chars = len(boundaries) + 1
        if num_chars < rates.min_split_chars or draw() >= rates.split:
            return [identity]
        tok = self.vocabulary.token(identity)
        cuts: list[int] = []
        for index, offset in enumerate(boundaries):
            previous = cuts[-1] if cuts else 0
            # Single characters are cut off at a rate of their own.
            start = boundaries[index - 1] if index else 0
            leaves_one = previous == start or index == len(boundaries) - 1
            if draw() >= (rates.cut_edge if leaves_one else rates.cut):
                continue
            piece = split_tok(tok, [*cuts, offset])[-2]
            # a piece with an embedding of its own would give the generator nothing to learn
            if self.vocabulary.find(piece) is None:
                cuts.append(offset)
        if cuts:
            return [*map(self._id_or_token, split_tok(tok, cuts))]
        return [identity]

    def _merge(self, ids: Sequence[int], draw: Callable[[], float]) -> list[IdOrTok]:
        is_normal = self.vocabulary.is_normal
        groups = [[ids[0]]]
        for before, identity in pairwise(ids):
            if is_normal[before] and is_normal[identity] and draw() < self._rates.merge:
                groups[-1].append(identity)
            else:
                groups.append([identity])
        merged: list[IdOrTok] = []
        for group in groups:
            if len(group) == 1:
                merged.append(group[0])
                continue
            tok = merge_toks([*map(self.vocabulary.token, group)])
            merged.append(self._id_or_token(tok))
        return merged

    def _id_or_token(self, tok: Tok) -> IdOrTok:
        """Return the id of a token that is in the vocabulary, else the token itself."""
        identity = self.vocabulary.find(tok)
        return tok if identity is None else identity
