"""Stages that encode multilingual text and build examples of two consecutive sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nlgraft.basics.errors import DataError
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.text_stages import REPORT_FILE, encode_lines, open_tokenizer
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import Corpus, read_corpus, read_splits, write_corpus
from nlgraft.text.files import write_json
from nlgraft.training.views import Encoded
from trainables.multi_source.graph import (
    DOCUMENTS,
    LANGUAGE,
    LANGUAGES,
    TEXT,
)


def encode_languages(context: StageContext) -> None:
    """Encode text in several languages as one corpus, with the language id of each line."""
    settings, inputs = LANGUAGES.read(context)
    tokenizer = open_tokenizer(inputs.tokenizer)
    report: dict[str, object] = {"vocab_sizes": {TEXT: tokenizer.vocab_size}}
    for split in ("train", "dev"):
        lines, languages = [], []
        for language, directory in sorted(inputs.corpora.items()):
            language_lines = read_corpus(directory / split).text()
            lines += language_lines
            languages += [[tokenizer.id(settings.tokens[language])]] * len(language_lines)
        text, report[f"{split}/cut"] = encode_lines(lines, tokenizer, settings.max_tokens)
        Encoded({TEXT: text, LANGUAGE: Ragged.of(languages)}).write(
            context.directory / f"{split}.safetensors"
        )
        write_corpus(Corpus([lines]), context.directory / split)
    write_json(context.directory / REPORT_FILE, report)


def pair_sentences(context: StageContext) -> None:
    """Make examples of each sentence and the previous one in its document."""
    settings, inputs = DOCUMENTS.read(context)
    for split, corpus in read_splits(inputs.corpus).items():
        assert corpus.target is not None
        before = previous(corpus.sources[0], corpus.documents)
        if settings.kind == "previous":
            paired = replace(corpus, sources=[before, corpus.sources[0]])
        else:
            assert settings.separator is not None
            targets = joined(previous(corpus.target, corpus.documents), corpus.target, settings.separator)
            sources = joined(before, corpus.sources[0], settings.separator)
            paired = replace(corpus, sources=[sources], target=targets)
        write_corpus(paired, context.directory / split)


def previous(lines: Sequence[str], documents: Sequence[str] | None) -> list[str]:
    """List the previous line in the same document for each line; empty at the start of a document.

    Raises:
        DataError: The corpus has no document ids.
    """
    if documents is None:
        raise DataError("the corpus has no stream 'document', which says where documents begin")
    pairs = zip(["", *lines], [None, *documents], documents, strict=False)
    return [line if before == now else "" for line, before, now in pairs]


def joined(
    before: Sequence[str],
    lines: Sequence[str],
    separator: str,
) -> list[str]:
    """Prepend to each line its previous line, if any, and the separator."""
    pairs = zip(before, lines, strict=True)
    return [f"{first} {separator} {line}" if first else line for first, line in pairs]
