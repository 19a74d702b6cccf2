"""Random checkpoints of the size of language models, and byte-level BPE tokenizers of their size."""

from __future__ import annotations

import random
from itertools import product

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

END = "<|endoftext|>"


def syllable_bpe(size: int) -> tokenizers.Tokenizer:
    """Make a byte-level BPE of ``size`` tokens, the end of text last: bytes, syllables, pairs of these.

    Every token is made of two earlier ones by the only merge of its text, so that all are reachable.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: i for i, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []

    def add(left: str, right: str) -> None:
        if len(ids) < size - 1 and left + right not in ids:
            ids[left + right] = len(ids)
            merges.append((left, right))

    syllables = [f"{a}{b}" for a, b in product("bcdfghjklmnpqrstvwxz", "aeiouy")]
    for syllable in syllables:
        add(*syllable)
    words = [*syllables]
    while len(ids) < size - 1:
        longer = [(one, other) for one in words for other in syllables]
        random.Random(len(words)).shuffle(longer)
        for one, other in longer:
            add(one, other)
        words = [one + other for one, other in longer]
    made = tokenizers.Tokenizer(models.BPE(ids, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    return made
