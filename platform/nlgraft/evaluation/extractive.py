"""Summaries taken from the text itself: its first sentences, and those nearest to the reference."""

from __future__ import annotations

import re

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def sentences(text: str) -> list[str]:
    """Split a line at white space behind full stops, exclamation and question marks."""
    return _SENTENCE_END.split(text.strip())


def lead(text: str, num_sentences: int) -> str:
    """Take the first sentences."""
    return " ".join(sentences(text)[:num_sentences])


def oracle(text: str, reference: str, num_sentences: int) -> str:
    """Choose sentences one by one while each raises the sum of ROUGE-1 and ROUGE-2 F1, in the text's order.

    Source: Nallapati et al. (2017), SummaRuNNer, section 3 (greedy extractive labels).
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer, parts = RougeScorer(["rouge1", "rouge2"], use_stemmer=True), sentences(text)

    def value(chosen: set[int]) -> float:
        summary = " ".join(parts[index] for index in sorted(chosen))
        return sum(score.fmeasure for score in scorer.score(reference, summary).values())

    chosen: set[int] = set()
    best = 0.0
    while len(chosen) < min(num_sentences, len(parts)):
        rest = [index for index in range(len(parts)) if index not in chosen]
        index = max(rest, key=lambda index: value(chosen | {index}))
        reached = value(chosen | {index})
        if chosen and reached <= best:
            break
        chosen, best = chosen | {index}, reached
    return " ".join(parts[index] for index in sorted(chosen))
