"""Split and merge the tokens of a sentence so that it contains out-of-vocabulary tokens.

Splits and merges stay within a word, and the text does not change.
Source: Liu et al. (2021), section 3.3; probabilities from the authors' code, without its defects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nlgraft.vocab.tokenizers.tokens import Kind, Tok, character_boundaries, merge_toks, split_tok
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.config import SegmentationRates


@dataclass(frozen=True)
class ChangedSentence:
    """A sentence in another segmentation.

    Attributes:
        tokens: Vocabulary ids, or out-of-vocabulary tokens, whose embeddings are to be generated.
        words: Word number of each token.
    """

    tokens: list[int | Tok]
    words: list[int]


class Perturber:
    """Changes the segmentation of sentences of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, rates: SegmentationRates) -> None:
        self.vocabulary = vocabulary
        self.rates = rates

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
        self, ids: Sequence[int], generator: np.random.Generator, is_kept: Sequence[bool] = ()
    ) -> ChangedSentence:
        """Split or merge tokens at random; the text stays the same.

        Args:
            ids: Vocabulary ids of a sentence, without begin and end.
            generator: Source of randomness; one of its own for every sentence and epoch.
            is_kept: True for tokens whose words must not be changed; empty: none.
        """
        words = self.words(ids)
        tokens: list[int | Tok] = []
        numbers: list[int] = []
        start = 0
        for end in range(1, len(ids) + 1):
            if end < len(ids) and words[end] == words[start]:
                continue
            is_fixed = any(is_kept[start:end])
            changed = ids[start:end] if is_fixed else self._change_word(ids[start:end], generator.random)
            tokens.extend(changed)
            numbers.extend([words[start]] * len(changed))
            start = end
        return ChangedSentence(tokens, numbers)

    def _change_word(self, ids: Sequence[int], draw: Callable[[], float]) -> list[int | Tok]:
        """Split tokens of a word; where none was split, merge some."""
        pieces: list[list[Tok]] = [self._split(identity, draw) for identity in ids]
        if any(len(parts) > 1 for parts in pieces):
            changed: list[int | Tok] = []
            for identity, parts in zip(ids, pieces, strict=True):
                changed.extend([identity] if len(parts) < 2 else map(self._known, parts))
            return changed
        return self._merge(ids, draw)

    def _split(self, identity: int, draw: Callable[[], float]) -> list[Tok]:
        boundaries, rates = self._boundaries[identity], self.rates
        num_chars = len(boundaries) + 1
        if num_chars < rates.min_split_chars or draw() >= rates.split:
            return []
        tok = self.vocabulary.tokens[identity]
        assert tok is not None
        cuts: list[int] = []
        for index, offset in enumerate(boundaries):
            previous = cuts[-1] if cuts else 0
            leaves_one = previous == (boundaries[index - 1] if index else 0) or index == len(boundaries) - 1
            if draw() >= (rates.cut_edge if leaves_one else rates.cut):
                continue
            piece = split_tok(tok, [*cuts, offset])[-2]
            # a piece with an embedding of its own would give the generator nothing to learn
            if self.vocabulary.find(piece) is None:
                cuts.append(offset)
        return split_tok(tok, cuts)

    def _merge(self, ids: Sequence[int], draw: Callable[[], float]) -> list[int | Tok]:
        changed: list[int | Tok] = []
        start = 0
        while start < len(ids):
            end = start + 1
            while end < len(ids) and self._is_joinable(ids[end - 1], ids[end]) and draw() < self.rates.merge:
                end += 1
            if end == start + 1:
                changed.append(ids[start])
            else:
                toks = [tok for i in ids[start:end] if (tok := self.vocabulary.tokens[i]) is not None]
                changed.append(self._known(merge_toks(toks)))
            start = end
        return changed

    def _is_joinable(self, first: int, second: int) -> bool:
        toks = (self.vocabulary.tokens[first], self.vocabulary.tokens[second])
        return all(tok is not None and tok.kind is Kind.NORMAL for tok in toks)

    def _known(self, tok: Tok) -> int | Tok:
        """Return the id of a token that is in the vocabulary, else the token itself."""
        identity = self.vocabulary.find(tok)
        return tok if identity is None else identity
