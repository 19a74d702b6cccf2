"""Text of masked language models: tokenizers in one file format, encoded lines that keep their words."""

from __future__ import annotations

import json

from nlgraft.basics.errors import DataError
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.kinds.masked_lm_kinds import CHECKPOINT_TOKENIZER, ENCODED_WORDS, WORD_TOKENIZER
from nlgraft.stages.run.text_stages import REPORT_FILE, text_of
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import SPLITS
from nlgraft.text.word_tokenizers import TOKENIZER_FILE, encode_words, learn_tokenizer
from nlgraft.training.masked_text import TEXT, WORD_SIZES, WORDS, MaskingIds
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary


def learn(context: StageContext) -> None:
    """Learn a tokenizer from the training lines of a corpus."""
    settings, inputs = WORD_TOKENIZER.read(context)
    learn_tokenizer(
        text_of(read_corpus(inputs.corpus / "train"), [TEXT]), settings.tokenizer, context.directory
    )


def copy_tokenizer(context: StageContext) -> None:
    """Take the tokenizer of a released model.

    Raises:
        DataError: It has none that can be written as ``tokenizer.json``.
    """
    from transformers import AutoTokenizer

    settings, _ = CHECKPOINT_TOKENIZER.read(context)
    checkpoint = context.locations["checkpoint"]
    options = {} if settings.revision is None else {"revision": settings.revision}
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, **options)
    except (OSError, ValueError) as error:
        raise DataError(f"{checkpoint}: no tokenizer ({error})") from error
    tokenizer.save_pretrained(context.directory)
    if not (context.directory / TOKENIZER_FILE).is_file():
        raise DataError(
            f"{checkpoint}: its tokenizer cannot be written as {TOKENIZER_FILE}; convert it to a fast "
            "tokenizer first"
        )


def encode(context: StageContext) -> None:
    """Encode all splits that the corpus has; lines that are too long are cut and counted."""
    settings, inputs = ENCODED_WORDS.read(context)
    vocabulary = load_vocabulary(inputs.tokenizer)
    unknown = MaskingIds.of(vocabulary).unk
    report: dict[str, object] = {"vocab_sizes": {TEXT: len(vocabulary)}}
    # Not every corpus has a test split.
    for split in (split for split in SPLITS if (inputs.corpus / split).is_dir()):
        lines = text_of(read_corpus(inputs.corpus / split), [TEXT])
        encoded = encode_words(inputs.tokenizer / TOKENIZER_FILE, lines, settings.max_tokens)
        streams = {TEXT: encoded.ids, WORDS: encoded.words, WORD_SIZES: encoded.word_sizes}
        Encoded(streams).write(context.directory / f"{split}.safetensors")
        num_tokens = len(encoded.ids.values)
        report[f"{split}/{TEXT}"] = {
            "cut": encoded.num_cut,
            "tokens_per_line": num_tokens / max(1, len(lines)),
            "fertility": num_tokens / max(1, len(encoded.word_sizes.values)),
            "unknown": int((encoded.ids.values == unknown).sum()),
        }
    (context.directory / REPORT_FILE).write_text(json.dumps(report, indent=1) + "\n", "utf-8")
