"""Corpora, tokenizers, encoded examples; no torch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.stage_kind import CORPUS, ENCODED, TOKENIZER
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.text.corpora import Corpus, corpus_report, load_corpus, read_corpus, report_json, write_corpus
from nlgraft.text.corpus_checks import round_trip_warning
from nlgraft.text.corpus_config import CorpusConfig
from nlgraft.text.files import JoinedLines, chunks, read_json, spooled, write_json
from nlgraft.text.tokenizers import ContextTokenizer, SentencePiece, Tokenizer, WordPiece, train_sentencepiece
from nlgraft.training.train_config import TrainConfig
from nlgraft.training.views import Encoded, write_encoded

TOKENIZER_FILE = "tokenizer.model"
"""A SentencePiece model, as trained here or of a checkpoint."""
WORDPIECE_FILE = "tokenizer.json"
"""A tokenizer of a checkpoint, renumbered unless the next file lies beside it."""
TRANSFORMERS_FILE = "tokenizer_config.json"
"""Beside a tokenizer with the checkpoint's own ids: the tokenizer of a context."""
REPORT_FILE = "report.json"
_NUM_ROUND_TRIP = 1000  # lines: enough to see a loss
_NOISE_CHARACTERS = 5.0
"""About one token: examples whose lengths differ by less are mixed at random, like those of equal tokens."""
_LOG = logging.getLogger(__name__)
_CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)


def write_examples(context: StageContext) -> None:
    """Load a corpus and keep all of its streams and a report."""
    settings, _ = CORPUS.read(context)
    corpora = _load(context)
    if settings.joined_by is not None:
        corpora = {split: _joined(corpus, settings.joined_by) for split, corpus in corpora.items()}
    _write(context, corpora)


def _joined(corpus: Corpus, separator: str) -> Corpus:
    lines = (separator.join(parts) for parts in zip(*corpus.sources, strict=True))
    return replace(corpus, sources=[spooled(lines)])


def write_text(context: StageContext) -> None:
    """Load a corpus as plain text: the lines of all its sides."""
    _write(context, {split: Corpus([corpus.lines()]) for split, corpus in _load(context).items()})


def _load(context: StageContext) -> dict[str, Corpus]:
    return load_corpus(_CORPUS.validate_python(context.locations["corpus"]))


def _write(context: StageContext, corpora: Mapping[str, Corpus]) -> None:
    for split, corpus in corpora.items():
        write_corpus(corpus, context.directory / split)
    write_json(context.directory / REPORT_FILE, report_json(corpus_report(corpora)))


def learn_tokenizer(context: StageContext) -> None:
    """Learn a SentencePiece model from the training text of some roles of one corpus or several."""
    settings, inputs = TOKENIZER.read(context)
    corpora = [read_corpus(directory / "train") for _, directory in sorted(inputs.corpora.items())]
    lines = JoinedLines(corpus.lines(*settings.roles or ()) for corpus in corpora)
    path = context.directory / TOKENIZER_FILE
    train_sentencepiece(lines, settings.tokenizer, path, seed=0, symbols=settings.symbols)


def tokenizer_path(directory: Path) -> Path:
    """Find the file of an artifact's tokenizer; its name tells its kind."""
    wordpiece = directory / WORDPIECE_FILE
    return wordpiece if wordpiece.is_file() else directory / TOKENIZER_FILE


def open_tokenizer(directory: Path) -> Tokenizer:
    """Open the tokenizer of an artifact: learned here, or of a checkpoint."""
    path = tokenizer_path(directory)
    if (directory / TRANSFORMERS_FILE).is_file():
        return ContextTokenizer(path)
    return WordPiece(path) if path.name == WORDPIECE_FILE else SentencePiece(path)


def training_budget(
    train: TrainConfig,
    corpus: Path,
    split: str,
    seed: int,
) -> int | LengthBatches:
    """Return the most tokens of a batch, or the batches themselves where characters or sentences bound them.

    The latter depend on the text alone, so they are the same for every vocabulary and view.
    """
    if train.batch_tokens is not None:
        return train.batch_tokens
    budget = train.batch_characters or train.batch_sentences
    assert budget is not None, "a training has one budget"
    is_by_count = train.batch_sentences is not None
    # In characters: batches are then the same for every vocabulary.
    lengths = read_corpus(corpus / split).lengths().T
    return LengthBatches(lengths, budget, seed, noise=_NOISE_CHARACTERS, is_by_count=is_by_count)


def encode(context: StageContext) -> None:
    """Encode splits of a corpus; sequences that are too long are cut and counted."""
    settings, inputs = ENCODED.read(context)
    tokenizers = {stream: open_tokenizer(path) for stream, path in inputs.tokenizers.items()}
    report: dict[str, Any] = {
        "vocab_sizes": {stream: tokenizer.vocab_size for stream, tokenizer in tokenizers.items()}
    }
    for split in settings.splits:
        corpus = read_corpus(inputs.corpus / split)
        counts = {stream: Counter[str]() for stream in settings.streams}
        parts = (
            (stream, part)
            for stream, role in settings.streams.items()
            for part in _parts(context, corpus.lines(role), tokenizers[stream], counts[stream])
        )
        write_encoded(context.directory / f"{split}.safetensors", parts)
        report |= {f"{split}/{stream}": _rates(numbers) for stream, numbers in counts.items()}
        for stream, role in settings.streams.items():
            if (split, role) == ("dev", "target"):
                warning = round_trip_warning(tokenizers[stream], corpus.lines(role)[:_NUM_ROUND_TRIP])
                if warning is not None:
                    _LOG.warning("%s: %s", context.stage.name, warning)
    write_json(context.directory / REPORT_FILE, report)


def encode_lines(
    lines: Iterable[str],
    tokenizer: Tokenizer,
    max_tokens: int | None,
) -> tuple[Ragged, int]:
    """Encode lines, and count those that were cut."""
    ids = Ragged.of(row for chunk in chunks(lines) for row in tokenizer.encode(chunk))
    return _cut(ids, tokenizer, max_tokens)


def _cut(
    lines: Ragged,
    tokenizer: Tokenizer,
    max_tokens: int | None,
) -> tuple[Ragged, int]:
    # the ends of a context's lines are special tokens: the context cuts them in the middle
    if max_tokens is None or isinstance(tokenizer, ContextTokenizer):
        return lines, 0
    return lines.truncated(max_tokens)


def _parts(
    context: StageContext,
    lines: Iterable[str],
    tokenizer: Tokenizer,
    counts: Counter[str],
) -> Iterator[Ragged]:
    """Encode lines in parts, count them, and report how far it is."""
    max_tokens = ENCODED.read(context)[0].max_tokens
    for chunk in chunks(lines):
        whole = Ragged.of(tokenizer.encode(chunk))
        cut, num_cut = _cut(whole, tokenizer, max_tokens)
        counts["cut"] += num_cut
        counts["lines"] += len(chunk)
        counts["tokens"] += len(whole.values)
        counts["words"] += sum(len(line.split()) for line in chunk)
        counts["unknown"] += int((whole.values == tokenizer.unknown_id).sum())
        context.report(counts["lines"], {})
        yield cut


def _rates(counts: Counter[str]) -> dict[str, float]:
    return {
        "cut": counts["cut"],
        "tokens_per_line": counts["tokens"] / max(1, counts["lines"]),
        "fertility": counts["tokens"] / counts["words"] if counts["words"] else 0.0,
        "unknown": counts["unknown"],
    }


def read_encoded(directory: Path, split: str) -> Encoded:
    """Read a split that ``encode`` wrote."""
    return Encoded.read(directory / f"{split}.safetensors")


def vocab_sizes(encoded: Path) -> dict[str, int]:
    """Read the size of the vocabulary of each encoded stream."""
    return read_json(encoded / REPORT_FILE)["vocab_sizes"]
