"""Text stages: corpora, tokenizers, encoded examples. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from nlgraft.errors import DataError
from nlgraft.pipeline.stage import StageContext
from nlgraft.text.batches import Ragged
from nlgraft.text.config import SPLITS, CorpusConfig, TokenizerConfig
from nlgraft.text.corpora import Corpus, corpus_report, load_corpus, read_corpus, report_json, write_corpus
from nlgraft.text.tokenizers import SentencePiece, Tokenizer, length_report, train_sentencepiece
from nlgraft.text.wordpiece import WordPiece

TOKENIZER_FILE = "tokenizer.model"
"""SentencePiece, as trained here or of a checkpoint."""
WORDPIECE_FILE = "tokenizer.json"
"""WordPiece, of a checkpoint."""
SOURCE_SEPARATOR = " | "
"""Stands between several sources of an example."""
_CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)


def make_corpus(context: StageContext) -> None:
    """Load a corpus and keep its lines and a report; several sources become one.

    Args:
        context: ``corpus``, among its locations, says which.

    Raises:
        DataError: It has no target side.
    """
    corpora = load_corpus(_CORPUS.validate_python(context.locations["corpus"]))
    for split, corpus in corpora.items():
        if corpus.target is None:
            raise DataError(
                f"{context.stage.name}, {split}: embedding transfer needs a target; "
                f"the corpus has {', '.join(corpus.streams())}"
            )
        write_corpus(_joined(corpus), context.directory / split)
    _write_report(context, corpora)


def _joined(corpus: Corpus) -> Corpus:
    """Put several sources of an example on one line (section 4.2: answer and passage are the input)."""
    if len(corpus.sources) == 1:
        return corpus
    lines = [SOURCE_SEPARATOR.join(parts) for parts in zip(*corpus.sources, strict=True)]
    return replace(corpus, sources=[lines])


def make_text(context: StageContext) -> None:
    """Load a corpus as plain text: the lines of all its sides, each its own source and target.

    Args:
        context: ``corpus``, among its locations, says which.
    """
    corpora = load_corpus(_CORPUS.validate_python(context.locations["corpus"]))
    for split, corpus in corpora.items():
        write_corpus(Corpus([corpus.text()], corpus.text()), context.directory / split)
    _write_report(context, corpora)


def _write_report(context: StageContext, corpora: Mapping[str, Corpus]) -> None:
    report = report_json(corpus_report(corpora))
    (context.directory / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def sides_of(corpus: Corpus) -> tuple[list[str], list[str]]:
    """Take the two sides of a translation corpus.

    Args:
        corpus: One source, a target.

    Returns:
        Source and target lines.
    """
    assert corpus.target is not None
    return corpus.sources[0], corpus.target


def make_tokenizer(context: StageContext) -> None:
    """Learn a tokenizer from the training text of one side, or of both.

    Args:
        context: Tokenizer settings with ``side``; inputs ``corpus``, and ``further_corpus`` for a tokenizer
            of both domains.
    """
    config = context.config
    side = config.pop("side")
    lines: list[str] = []
    for name in ("corpus", "further_corpus"):
        if name in context.inputs:
            source, target = sides_of(read_corpus(context.inputs[name] / "train"))
            lines += {"source": source, "target": target, "both": [*source, *target]}[side]
    path = context.directory / TOKENIZER_FILE
    train_sentencepiece(lines, TokenizerConfig(**config), path, context.seed or 0)


def tokenizer_path(directory: Path) -> Path:
    """Find the file of an artifact's tokenizer.

    Args:
        directory: What ``make_tokenizer`` wrote, or a stage that takes a checkpoint's tokenizer.

    Returns:
        The file; its name tells its kind.
    """
    wordpiece = directory / WORDPIECE_FILE
    return wordpiece if wordpiece.is_file() else directory / TOKENIZER_FILE


def open_tokenizer(directory: Path) -> Tokenizer:
    """Open the tokenizer of an artifact.

    Args:
        directory: As ``tokenizer_path`` takes it.

    Returns:
        The tokenizer.
    """
    path = tokenizer_path(directory)
    return WordPiece(path) if path.name == WORDPIECE_FILE else SentencePiece(path)


def open_tokenizers(context: StageContext) -> tuple[Tokenizer, Tokenizer]:
    """Open a stage's source and target tokenizer.

    Args:
        context: Inputs ``source_tokenizer`` and ``target_tokenizer``.

    Returns:
        Both.
    """
    source, target = context.inputs["source_tokenizer"], context.inputs["target_tokenizer"]
    return open_tokenizer(source), open_tokenizer(target)


def encode(context: StageContext) -> None:
    """Encode train and dev; sequences that are too long are cut and counted.

    Args:
        context: ``max_tokens``; inputs ``corpus`` and both tokenizers.
    """
    max_tokens = context.config["max_tokens"]
    tokenizers = open_tokenizers(context)
    report: dict[str, object] = {"vocab_sizes": [tokenizer.vocab_size for tokenizer in tokenizers]}
    for split in SPLITS[:2]:
        lines = sides_of(read_corpus(context.inputs["corpus"] / split))
        for side, text, tokenizer in zip(("source", "target"), lines, tokenizers, strict=True):
            ragged, num_cut = Ragged.of(tokenizer.encode(text)).truncated(max_tokens)
            ragged.write(context.directory / f"{split}-{side}.safetensors")
            lengths = length_report(tokenizer, text)
            report[f"{split}/{side}"] = {
                "cut": num_cut,
                "tokens_per_line": lengths.tokens_per_line,
                "fertility": lengths.fertility,
                "unknown": lengths.num_unknown,
            }
    (context.directory / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def vocab_sizes(encoded: Path) -> tuple[int, int]:
    """Read how many tokens the vocabularies of encoded text have.

    Args:
        encoded: What ``encode`` wrote.

    Returns:
        Of the source and of the target.
    """
    source, target = json.loads((encoded / "report.json").read_text("utf-8"))["vocab_sizes"]
    return source, target
