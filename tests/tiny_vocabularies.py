"""Vocabularies written out by hand, without a tokenizer's file."""

from nlgraft.vocab.tokenizers.segmenters import GreedySegmenter
from nlgraft.vocab.tokenizers.vocabulary import WORDPIECE, Kind, make_vocabulary


def greedy_vocabulary(
    surfaces, marking=WORDPIECE, specials=(), *, kinds=None, is_isolated=lambda character: False, **options
):
    """Tokens in a notation, special or of other kinds; words are cut into the longest normal tokens first."""
    kinds = kinds or [Kind.SPECIAL if surface in specials else Kind.NORMAL for surface in surfaces]
    ids = {surface: i for i, surface in enumerate(surfaces) if surface and kinds[i] is Kind.NORMAL}
    segmenter = GreedySegmenter(ids, marking, is_isolated)
    return make_vocabulary(surfaces, kinds, marking, segmenter, is_isolated=is_isolated, **options)
