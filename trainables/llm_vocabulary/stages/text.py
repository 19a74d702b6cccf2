"""Text and vocabularies of causal language models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.text_stages import text_of
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import read_corpus
from nlgraft.text.files import read_json
from nlgraft.text.word_tokenizers import TOKENIZER_FILE, learn_byte_tokenizer
from nlgraft.training.views import Encoded, IntArray
from nlgraft.vocab.tokenizers.directories import copy_settings
from nlgraft.vocab.tokenizers.encoding import count_tokens, open_tokenizer, text_encoder
from nlgraft.vocab.tokenizers.extension import learn_extension
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.pruning import prune_tokenizer
from trainables.llm_vocabulary.kinds import BYTE_TOKENIZER, CHANGE, ENCODED_LINES, TEXT


def lines_of(corpus: Path, split: str) -> list[str]:
    """Read the lines of a split."""
    return text_of(read_corpus(corpus / split), [TEXT])


def bytes_of(corpus: Path, split: str) -> IntArray:
    """Measure the lines of a split in bytes of UTF-8, the end of each included, [N]."""
    return np.array([len(line.encode()) + 1 for line in lines_of(corpus, split)], dtype=np.int64)


def learn_tokenizer(context: StageContext) -> None:
    """Learn a byte-level vocabulary from the training lines of a corpus."""
    settings, inputs = BYTE_TOKENIZER.read(context)
    lines = lines_of(inputs.corpus, "train")
    learn_byte_tokenizer(lines, settings.tokenizer.vocab_size, context.directory)


def change(context: StageContext) -> None:
    """Prune a vocabulary by the training lines of a corpus, extend it on them, or both."""
    settings, inputs = CHANGE.read(context)
    lines = lines_of(inputs.corpus, "train")
    file = inputs.tokenizer / TOKENIZER_FILE
    new_ids = None
    if settings.size is not None:
        counts = count_tokens(open_tokenizer(file), lines).tolist()
        pruned = prune_tokenizer(read_json(file), counts, size=settings.size)
        new_ids = {old: new for new, old in enumerate(pruned.old_ids)}
        file = _write(pruned.document, context.directory)
    if settings.num_added is not None and settings.min_count is not None:
        tokenizer, document = open_tokenizer(file), read_json(file)
        _write(
            learn_extension(tokenizer, document, lines, settings.num_added, settings.min_count),
            context.directory,
        )
    copy_settings(inputs.tokenizer, context.directory, new_ids)


def _write(document: dict[str, object], directory: Path) -> Path:
    file = directory / TOKENIZER_FILE
    file.write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    return file


def encode(context: StageContext) -> None:
    """Encode all splits that the corpus has; no line is cut."""
    _, inputs = ENCODED_LINES.read(context)
    encoder = text_encoder(inputs.tokenizer, load_vocabulary(inputs.tokenizer))
    for directory in sorted(path for path in inputs.corpus.iterdir() if path.is_dir()):
        ids = Ragged.of(encoder(lines_of(inputs.corpus, directory.name)))
        Encoded({TEXT: ids}).write(context.directory / f"{directory.name}.safetensors")
