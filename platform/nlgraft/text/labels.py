"""Checks of the labels of classification data, before anything is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from nlgraft.basics.errors import DataError
from nlgraft.text.corpora import Corpus

_MIN_EXAMPLES = 20  # fewer examples tell nothing about how many labels are too many
_NUM_SHOWN = 3


def check_labels(corpora: Mapping[str, Corpus], *, is_redrawn: bool = False) -> None:
    """Check that labels can be learned; corpora without labels pass.

    Args:
        corpora: Corpus by split.
        is_redrawn: True if the splits are pooled and drawn anew, so that only all of them together count.

    Raises:
        DataError: Labels are blank, all alike or nearly all distinct, or dev or test has some that train
            lacks. The message has a line for each problem.
    """
    labels = {split: corpus.labels for split, corpus in corpora.items() if corpus.labels is not None}
    problems = [problem for split, split_labels in labels.items() for problem in _blank(split, split_labels)]
    if is_redrawn:
        labels = {"train": [label for split_labels in labels.values() for label in split_labels]}
    if train := labels.get("train"):
        problems += [*_useless(train), *(line for split in labels for line in _unlearned(split, labels))]
    if problems:
        raise DataError("\n".join(problems))


def _blank(split: str, labels: Sequence[str]) -> Iterator[str]:
    blank = [str(number) for number, label in enumerate(labels, start=1) if not label.strip()]
    if blank:
        more = ", ..." if len(blank) > _NUM_SHOWN else ""
        yield (
            f"{split}: {len(blank)} of {len(labels)} examples have no label (example "
            f"{', '.join(blank[:_NUM_SHOWN])}{more}); give each one, or remove the example from all files"
        )


def _useless(labels: Sequence[str]) -> Iterator[str]:
    distinct = Counter(labels)
    if len(distinct) == 1:
        yield (
            f"train: all {len(labels)} examples have the label {labels[0]!r}: there is nothing to decide; "
            "give examples of two labels or more"
        )
    elif len(labels) >= _MIN_EXAMPLES and len(distinct) > len(labels) / 2:
        yield (
            f"train: {len(labels)} examples have {len(distinct)} distinct labels, such as "
            f"{', '.join(map(repr, [*distinct][:_NUM_SHOWN]))}: labels repeat; give a file with one label on "
            "each line and nothing else, or a column of a table"
        )


def _unlearned(split: str, labels: Mapping[str, Sequence[str]]) -> Iterator[str]:
    train_labels = set(labels["train"])
    unknown = Counter(label for label in labels[split] if label.strip() and label not in train_labels)
    if unknown:
        named = ", ".join(repr(label) for label, _ in unknown.most_common(_NUM_SHOWN))
        more = ", ..." if len(unknown) > _NUM_SHOWN else ""
        yield (
            f"{split}: {unknown.total()} of {len(labels[split])} examples have a label that train lacks "
            f"({named}{more}); give train examples of it, or remove these"
        )
