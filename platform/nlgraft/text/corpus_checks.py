"""Checks of corpora and tokenizers, in seconds and before anything is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from operator import eq
from typing import Any

import sentencepiece
from pydantic import BaseModel, ValidationError

from nlgraft.basics.errors import DataError
from nlgraft.text.corpora import (
    Corpus,
    SplitReport,
    blank_examples,
    corpus_report,
    load_split_files,
    missing_package,
)
from nlgraft.text.corpus_config import (
    SPECIAL_PIECES,
    CorpusConfig,
    FilesConfig,
    HuggingFaceConfig,
    SacreBleuConfig,
    TextFiles,
    as_corpus,
    digest,
    word_tokens,
)
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig
from nlgraft.text.tokenizers import Tokenizer, normalised

MIN_ROUND_TRIP = 99.5
"""BLEU below which text does not survive encoding and decoding."""
_NUM_COMPARED = 2000
"""Lines by which the languages of two texts are compared."""
_SWAPPED, _MIN_SHARED = 2.0, 0.2
"""Sides are swapped that share so many times more running words crosswise, at least so large a part."""
_SAME_TEXT = 0.9
"""Share of equal lines above which two sides are one text; a draft and its correction may have half."""


@dataclass(frozen=True)
class CorpusCheck:
    """Findings about the splits of a corpus that lie in files of this machine; none for other corpora.

    Attributes:
        corpora: The splits.
        reports: Their counts.
        warnings: Empty lines, sides that are one text: allowed, but probably a mistake.
        overlaps: Dev and test examples that also occur in train, test examples in dev: the same.
    """

    corpora: Mapping[str, Corpus] = field(default_factory=dict)
    reports: Mapping[str, SplitReport] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    overlaps: tuple[str, ...] = ()


def check_corpus(config: CorpusConfig) -> CorpusCheck:
    """Read the files of a corpus, count, and look for likely mistakes.

    Raises:
        DataError: Files are missing, empty, of unequal length, not UTF-8, broken, or nothing of a split is
            left; or a package that reads the hub is not installed. The message has a line for each file.
    """
    if isinstance(config, HuggingFaceConfig) and (reason := missing_package()):
        raise DataError(reason)
    if not isinstance(config, FilesConfig | SacreBleuConfig):
        return CorpusCheck()
    problems: list[str] = []
    corpora: dict[str, Corpus] = {}
    for split, files in config.splits.items():
        if isinstance(files, TextFiles):
            try:
                corpora[split] = load_split_files(config, split, files)
            except DataError as error:
                problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    reports = corpus_report(corpora)
    warnings = (*_empty_lines(corpora), *_copies(corpora))
    return CorpusCheck(corpora, reports, warnings, (*_overlaps(reports), *_seen_in_dev(corpora)))


def corpora_in(data: Any, path: str = "data") -> Iterator[tuple[str, CorpusConfig]]:
    """Find the corpora in ``data`` of a system's config, or in a part of it, with their paths.

    A corpus that is described in a system's own way is left out.
    """
    if hasattr(data, "corpus"):
        with suppress(ValidationError):
            yield path, as_corpus(data)
    elif isinstance(data, BaseModel | Mapping):
        for name, part in dict(data).items():
            yield from corpora_in(part, f"{path}.{name}")


def data_problems(data: BaseModel) -> list[str]:
    """List what is wrong with all corpora in ``data`` of a system's config, each with its path."""
    problems = []
    for path, corpus in corpora_in(data):
        try:
            check_corpus(corpus)
            digest(corpus)
        except DataError as error:
            problems += [f"{path}: {line}" for line in str(error).split("\n")]
    return problems


def swapped_sides(first: Corpus, second: Corpus) -> tuple[str, str] | None:
    """Name two sides of a corpus, each of which looks like the other one of a second corpus; None without.

    Languages are told apart by their frequent words. Sides that look alike, or that share too few words with
    those of the second corpus, never count as swapped.
    """
    rates, other_rates = (
        {role: _word_rates(lines[:_NUM_COMPARED]) for role, lines in corpus.sides().items()}
        for corpus in (first, second)
    )
    shared_roles = [role for role in rates if role in other_rates]
    for a, b in combinations(shared_roles, 2):
        straight = _likeness(rates[a], other_rates[a]) + _likeness(rates[b], other_rates[b])
        crossed = _likeness(rates[a], other_rates[b]) + _likeness(rates[b], other_rates[a])
        if crossed > max(_SWAPPED * straight, _MIN_SHARED):
            return a, b
    return None


def _word_rates(lines: Sequence[str]) -> dict[str, float]:
    counts = Counter(word for line in lines for word in word_tokens(line))
    total = counts.total()
    return {word: number / total for word, number in counts.items()}


def _likeness(rates: Mapping[str, float], other_rates: Mapping[str, float]) -> float:
    """Share of running words that two texts have in common."""
    return sum(min(rate, other_rates.get(word, 0.0)) for word, rate in rates.items())


def _empty_lines(corpora: Mapping[str, Corpus]) -> Iterator[str]:
    for split, corpus in corpora.items():
        for role, lines in corpus.streams().items():
            if role != "label":  # which none may lack: see `check_labels`
                yield from blank_examples(split, lines, f"an empty {role}", "remove them")


def _copies(corpora: Mapping[str, Corpus]) -> Iterator[str]:
    for split, corpus in corpora.items():
        for (a, lines), (b, other_lines) in combinations(corpus.sides().items(), 2):
            number = sum(map(eq, lines, other_lines))
            if number > _SAME_TEXT * len(corpus):
                examples = f"{number} of {len(corpus)} examples"
                yield f"{split}: {a} and {b} are equal in {examples}: is a file given twice?"


def _seen_in_dev(corpora: Mapping[str, Corpus]) -> Iterator[str]:
    if {"dev", "test"} <= corpora.keys():
        dev, test = corpora["dev"].sides().values(), corpora["test"].sides().values()
        seen = set(zip(*dev, strict=True))
        if number := sum(example in seen for example in zip(*test, strict=True)):
            examples = f"{number} of {len(corpora['test'])} examples"
            yield f"test: {examples} are also in dev, on which models are chosen; remove them there"


def _overlaps(reports: Mapping[str, SplitReport]) -> list[str]:
    return [
        f"{split}: {report.num_in_train} of {report.num_examples} examples are also in train, and the "
        f"sources of {report.num_sources_in_train}; scores on them measure memory, remove them from train"
        for split, report in reports.items()
        if report.num_sources_in_train
    ]


def separator_problems(corpora: Mapping[str, Corpus], separator: str | None) -> Iterator[str]:
    """Name the splits in which lines contain the separator that will join them; none without a separator."""
    if separator is None:
        return
    for split, corpus in corpora.items():
        for role, lines in corpus.sides().items():
            if number := sum(separator in line for line in lines):
                yield (
                    f"{split}: {number} of {len(lines)} lines of {role} have {separator!r}, which stands "
                    "between joined lines here: the text cannot be told from it; replace it in the files"
                )


def normalization_warning(rule: str, lines: Sequence[str]) -> str | None:
    """Warn when a SentencePiece normalisation changes references, by the BLEU that is left of 100."""
    if rule == "identity" or not lines:
        return None
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=rule)
    kept = round_trip_bleu(normalised(normalizer, lines), lines)
    if kept >= MIN_ROUND_TRIP:
        return None
    return (
        f"normalization {rule} changes the target text (BLEU {kept:.1f} of the references against "
        "themselves): scores will be those of normalised text (norm in their signature), not comparable with "
        "published ones; set normalization: identity"
    )


def round_trip_warning(tokenizer: Tokenizer, lines: Sequence[str]) -> str | None:
    """Warn when lines do not survive encoding and decoding."""
    kept = round_trip_bleu(tokenizer.decode(tokenizer.encode([*lines])), lines) if lines else 100.0
    if kept >= MIN_ROUND_TRIP:
        return None
    return (
        f"encoding and decoding the references leaves BLEU {kept:.1f} of 100, the best that a model can "
        "reach against them; look for unknown characters (character_coverage) and normalization"
    )


def round_trip_bleu(restored: Sequence[str], lines: Sequence[str]) -> float:
    """Compute BLEU over characters, which suits every script, of restored lines against the original ones."""
    if [*restored] == [*lines]:
        return 100.0
    from sacrebleu.metrics.bleu import BLEU  # takes 0.2 s to import

    return BLEU(tokenize="char", force=True).corpus_score([*restored], [[*lines]]).score


def vocabulary_warning(config: LearnedTokenizerConfig, lines: Sequence[str]) -> str | None:
    """Warn of a vocabulary that is larger than the number of distinct words and characters of its text."""
    words: set[str] = set()
    characters: set[str] = set()
    for line in lines:
        new = set(line.split()) - words
        words |= new
        characters.update(*new)
        reserved = len(SPECIAL_PIECES) + len(config.special_tokens)
        if config.vocab_size <= len(words) + len(characters) + reserved:
            return None
    return (
        f"vocab_size is {config.vocab_size}, but the training text has only {len(words)} distinct words and "
        f"{len(characters)} characters: the tokenizer will be smaller, or most of its pieces occur once; "
        "lower vocab_size or give more text"
    )
