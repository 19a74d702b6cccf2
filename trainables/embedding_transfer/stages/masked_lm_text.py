"""Text stages of masked language models: lines, vocabularies, encoded lines."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from nlgraft.errors import DataError
from nlgraft.pipeline.stage import StageContext
from nlgraft.text.config import SPLITS, CorpusConfig, WordTokenizerConfig
from nlgraft.text.corpora import corpus_report, load_corpus, read_corpus, report_json, write_corpus
from nlgraft.text.word_tokenizers import TOKENIZER_FILE, encode_words, learn_tokenizer
from nlgraft.training.masked_text import TEXT, WORD_SIZES, WORDS, MaskingIds
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary

_CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)


def make_text(context: StageContext) -> None:
    """Load a corpus and keep its lines and a report.

    Args:
        context: ``corpus``, among its locations, says which.

    Raises:
        DataError: It has more than one stream of text.
    """
    corpora = load_corpus(_CORPUS.validate_python(context.locations["corpus"]))
    for split, corpus in corpora.items():
        if list(corpus.streams()) != ["source 0"]:
            raise DataError(
                f"{context.stage.name}, {split}: a masked language model reads plain text; the corpus has "
                f"{', '.join(corpus.streams())}. Give a source and nothing else (conlang: task monolingual)"
            )
        write_corpus(corpus, context.directory / split)
    _write_json(context.directory / "report.json", report_json(corpus_report(corpora)))


def make_vocabulary(context: StageContext) -> None:
    """Learn a vocabulary from the training lines of a domain.

    Args:
        context: Settings of the tokenizer; input ``text``.
    """
    lines = read_corpus(context.inputs["text"] / "train").sources[0]
    learn_tokenizer(lines, WordTokenizerConfig(**context.config), context.directory)


def copy_vocabulary(context: StageContext) -> None:
    """Take the tokenizer of a checkpoint.

    Args:
        context: ``checkpoint``, among its locations, and ``revision`` of one on the hub.

    Raises:
        DataError: The checkpoint has no tokenizer of a readable kind.
    """
    from transformers import AutoTokenizer

    config, checkpoint = context.config, context.locations["checkpoint"]
    given = {"revision": config["revision"]} if "revision" in config else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, **given)
    except (OSError, ValueError) as error:
        raise DataError(f"masked_lm.checkpoint {checkpoint}: no tokenizer ({error})") from error
    tokenizer.save_pretrained(context.directory)
    if not (context.directory / TOKENIZER_FILE).is_file():
        raise DataError(
            f"masked_lm.checkpoint {checkpoint}: its tokenizer cannot be written as "
            f"{TOKENIZER_FILE}; convert it to a fast tokenizer first"
        )


def encode_text(context: StageContext) -> None:
    """Encode all splits; lines that are too long are cut and counted.

    Args:
        context: ``max_tokens``; inputs ``text`` and ``vocabulary``.
    """
    vocabulary = load_vocabulary(context.inputs["vocabulary"])
    unknown = MaskingIds.of(vocabulary).unk
    report: dict[str, object] = {"vocab_size": len(vocabulary)}
    for split in SPLITS:
        lines = read_corpus(context.inputs["text"] / split).sources[0]
        found = encode_words(
            context.inputs["vocabulary"] / TOKENIZER_FILE, lines, context.config["max_tokens"]
        )
        streams = {TEXT: found.ids, WORDS: found.words, WORD_SIZES: found.word_sizes}
        Encoded(streams).write(context.directory / f"{split}.safetensors")
        report[split] = {
            "cut": found.num_cut,
            "tokens_per_line": len(found.ids.values) / max(1, len(lines)),
            "fertility": len(found.ids.values) / max(1, len(found.word_sizes.values)),
            "unknown": int((found.ids.values == unknown).sum()),
        }
    _write_json(context.directory / "report.json", report)


def read_text(context: StageContext, split: str) -> Encoded:
    """Read the encoded lines of a split from the input ``encoded``."""
    return Encoded.read(context.inputs["encoded"] / f"{split}.safetensors")


def _write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
