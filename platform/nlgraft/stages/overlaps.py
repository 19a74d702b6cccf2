"""Text that occurs twice in a study: what is scored must not be trained on, in any role."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nlgraft.pipeline.stage import Stage
from nlgraft.text.corpora import Corpus


@dataclass(frozen=True)
class Overlap:
    """Examples of a split that occur in the training text of another corpus.

    Attributes:
        corpus: Name of the corpus that has the split.
        key: Fingerprint of its stage.
        split: The split.
        other: Name of the other corpus.
        other_key: Fingerprint of its stage.
        num_examples: Examples of the split with a line that is also a line of the other's training text.
        is_left_out: True if the study takes dev and test out of the other text before it is read.
    """

    corpus: str
    key: str
    split: str
    other: str
    other_key: str
    num_examples: int
    is_left_out: bool


def root(stage: Stage) -> Stage:
    """Follow derived text to the corpus that it is made of."""
    while key := next((key for key in ("corpus", "pooled") if key in stage.inputs), None):
        stage = stage.inputs[key]
    return stage


def pooled(stages: Iterable[Stage]) -> set[str]:
    """Find the corpora (fingerprints) whose own splits are pooled and drawn anew."""
    return {stage.inputs["pooled"].fingerprint for stage in stages if "pooled" in stage.inputs}


def overlaps(
    texts: Mapping[str, tuple[str, Mapping[str, Corpus]]], stages: Iterable[Stage]
) -> Iterator[Overlap]:
    """Compare every split of every corpus with the training text of every other one.

    Corpora of one name are levels of a factor; no trial reads two of them, so they are not compared.

    Args:
        texts: Name and splits of each corpus, by the fingerprint of its stage.
        stages: All stages; one with an input ``left_out`` takes the dev and test text of that out of its
            input ``corpus``.
    """
    apart = {
        (root(stage.inputs["left_out"]).fingerprint, stage.inputs["corpus"].fingerprint)
        for stage in stages
        if "left_out" in stage.inputs
    }
    train_lines = {key: _lines(splits["train"]) for key, (_, splits) in texts.items() if "train" in splits}
    for key, (name, splits) in texts.items():
        others = {other: lines for other, lines in train_lines.items() if texts[other][0] != name}
        for other, learned in others.items():
            for split, corpus in splits.items():
                examples = zip(*_sides(corpus), strict=True)
                number = sum(any(line in learned for line in example if line.strip()) for example in examples)
                if number:
                    is_left_out = split != "train" and (key, other) in apart
                    yield Overlap(name, key, split, texts[other][0], other, number, is_left_out)


def _sides(corpus: Corpus) -> list[list[str]]:
    return [lines for role, lines in corpus.streams().items() if role not in ("label", "document")]


def _lines(corpus: Corpus) -> set[str]:
    return {line for lines in _sides(corpus) for line in lines}
