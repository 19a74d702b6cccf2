"""Summaries taken from the text itself: its first sentences, and those nearest to the reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nlgraft.evaluation.metric_config import RougeTokenizer

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*(?=.)")
_WORDS = {"words": re.compile(r"\w+"), "characters": re.compile(r"[a-z0-9]+|[^\W_]")}


def sentences(text: str) -> list[str]:
    """Split a line behind full stops, exclamation and question marks, wide ones even without white space."""
    return _SENTENCE_END.split(text.strip())


class _Words:
    """Words of lower-cased text in any script, without stemming."""

    def __init__(self, word: re.Pattern[str]) -> None:
        self._word = word

    def tokenize(self, text: str) -> list[str]:
        return self._word.findall(text.lower())


def rouge_scorer(kinds: Sequence[str], tokenizer: RougeTokenizer) -> Any:
    """Make rouge-score's scorer with a tokenizer."""
    from rouge_score.rouge_scorer import RougeScorer

    words = _Words(_WORDS[tokenizer]) if tokenizer in _WORDS else None
    return RougeScorer([*kinds], use_stemmer=words is None, tokenizer=words)


def lead(text: str, num_sentences: int) -> str:
    """Take the first sentences."""
    return " ".join(sentences(text)[:num_sentences])


def oracle(text: str, reference: str, num_sentences: int, tokenizer: RougeTokenizer = "english") -> str:
    """Choose sentences one by one while each raises the sum of ROUGE-1 and ROUGE-2 F1, in the text's order.

    Source: Nallapati et al. (2017), SummaRuNNer, section 3 (greedy extractive labels).
    """
    scorer, parts = rouge_scorer(["rouge1", "rouge2"], tokenizer), sentences(text)

    def value(chosen: set[int]) -> float:
        summary = " ".join(parts[index] for index in sorted(chosen))
        return sum(score.fmeasure for score in scorer.score(reference, summary).values())

    chosen: set[int] = set()
    best = 0.0
    while len(chosen) < min(num_sentences, len(parts)):
        rest = [index for index in range(len(parts)) if index not in chosen]
        index = max(rest, key=lambda index: value(chosen | {index}))
        reached = value(chosen | {index})
        # The first sentence is taken whatever its value: a summary has at least one.
        if chosen and reached <= best:
            break
        chosen, best = chosen | {index}, reached
    return " ".join(parts[index] for index in sorted(chosen))
