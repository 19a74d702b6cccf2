"""Convert formats older than ``tokenizer.json`` to it: WordPiece, byte-level BPE, subword-nmt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json
from nlgraft.vocab.tokenizers.tokens import Kind
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary, role_of

SPECIAL_FILES = ("special_tokens_map.json", "tokenizer_config.json")
"""Files in which Hugging Face tokenizers name their special tokens."""


def read_lines(path: Path) -> list[str]:
    """Read the lines of a vocabulary file.

    Raises:
        DataError: It is not text in UTF-8.
    """
    try:
        # not splitlines, which also splits at U+2028 and the like: those are tokens of some vocabularies
        lines = path.read_bytes().decode("utf-8").replace("\r\n", "\n").split("\n")
        return lines if lines[-1] else lines[:-1]
    except UnicodeDecodeError:
        raise DataError(
            f"{path}: neither a SentencePiece model (*.model, *.spm), a tokenizer.json "
            "nor a vocabulary in UTF-8"
        ) from None


def read_tokens(path: Path) -> list[str]:
    """Read a vocabulary file: a token per line, with or without its frequency behind a space.

    Raises:
        DataError: It is text, or a list of SentencePiece pieces, instead of a vocabulary.
    """
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if re.fullmatch(r".+\t-?[\d.]+(e-?\d+)?", line):
            raise DataError(
                f"{path}, line {number}: a piece and its score, as SentencePiece lists them; give the model "
                f"itself, {path.with_suffix('.model').name}"
            )
        token, *rest = line.rstrip(" ").split(" ")
        is_count = not rest or (rest[0].isdigit() and rest[1:] in ([], ["#fairseq:overwrite"]))
        if token and not is_count:
            raise DataError(
                f"{path}, line {number}: {len(rest) + 1} words where a vocabulary has one token. This "
                'looks like text; train a tokenizer on it first, e.g. python -c "import sentencepiece; '
                f"sentencepiece.SentencePieceTrainer.train(input='{path}', model_prefix='new', "
                'vocab_size=8000)", and give new.model'
            )
    return lines


def read_specials(directory: Path) -> dict[str, Any]:
    """Read the special tokens that a Hugging Face tokenizer names; empty without such a file."""
    specials: dict[str, Any] = {}
    for name in SPECIAL_FILES:
        if (directory / name).is_file():
            specials |= read_json(directory / name)
    return specials


def wordpiece_json(lines: list[str], directory: Path) -> dict[str, Any]:
    """Convert a WordPiece vocabulary, one token per line, to a ``tokenizer.json``.

    ``directory`` may hold a ``tokenizer_config.json`` that says whether text is lower-cased; without one, a
    vocabulary without capitals is lower-cased.
    """
    is_special = [bool(re.fullmatch(r"\[(?!unused)[A-Z]+\]", line)) for line in lines]
    has_capitals = any(
        line != line.lower() for line, special in zip(lines, is_special, strict=True) if not special
    )
    is_lower = read_specials(directory).get("do_lower_case", not has_capitals)
    return {
        "version": "1.0",
        "added_tokens": [added_token(i, line) for i, line in enumerate(lines) if is_special[i]],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": bool(is_lower),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "vocab": {line: i for i, line in enumerate(lines)},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }


def byte_level_json(directory: Path) -> dict[str, Any]:
    """Convert ``vocab.json`` and ``merges.txt`` in a directory to a ``tokenizer.json``."""
    lines = [
        line for line in read_lines(directory / "merges.txt") if line and not line.startswith("#version")
    ]
    vocab = read_json(directory / "vocab.json")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    # vocab.json does not mark special tokens; their usual names tell.
    specials = [token for token in vocab if role_of(token)]
    return {
        "version": "1.0",
        "added_tokens": [added_token(vocab[token], token) for token in specials],
        "model": {"type": "BPE", "vocab": vocab, "merges": [line.split(" ", 1) for line in lines]},
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
    }


def is_wordpiece(lines: list[str]) -> bool:
    """Return True if the lines of a vocabulary file are WordPiece tokens, False for subword-nmt."""
    return any(line.startswith("##") for line in lines) or "[CLS]" in lines


def added_token(identity: int, content: str) -> dict[str, Any]:
    """Return the entry of a special token in ``tokenizer.json``."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": identity, "content": content, **flags, "special": True}


def whole_token_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Convert a subword-nmt vocabulary to a ``tokenizer.json`` for text that subword-nmt has segmented.

    Tokens between spaces are looked up, as fairseq does.
    """
    specials = [i for i, tok in enumerate(vocabulary.tokens) if tok is not None and tok.kind is Kind.SPECIAL]
    unknown = vocabulary.roles.get("unk")
    return {
        "version": "1.0",
        "added_tokens": [added_token(i, vocabulary.surfaces[i]) for i in specials],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": vocabulary.ids_by_surface,
            "unk_token": "<unk>" if unknown is None else vocabulary.surfaces[unknown],
        },
    }
