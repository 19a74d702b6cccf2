"""Read the vocabulary of any tokenizer; its kind is recognised from its files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json
from nlgraft.vocab.tokenizers.segmenters import GreedySegmenter
from nlgraft.vocab.tokenizers.spm import read_marian, read_sentencepiece
from nlgraft.vocab.tokenizers.tokenizer_json import added_token, read_tokenizer_json
from nlgraft.vocab.tokenizers.tokens import SUBWORD_NMT, Kind
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary, make_vocabulary, role_of


def load_vocabulary(path: str | Path) -> Vocabulary:
    """Read a vocabulary; its kind is recognised from the file itself.

    Args:
        path: A SentencePiece model, a ``tokenizer.json``, a WordPiece ``vocab.txt``, a subword-nmt or fairseq
            vocabulary (``token frequency`` lines), or a directory that holds one of ``tokenizer.json``,
            ``*.model``, ``vocab.txt``, ``vocab.json`` with ``merges.txt``, or Marian's ``vocab.json`` with
            ``source.spm``. ``DIR/target.spm`` segments words as Marian's target side does.

    Raises:
        DataError: The path is missing or holds no tokenizer.
    """
    path = Path(path)
    if path.is_dir():
        return _load_directory(path)
    if not path.is_file():
        raise DataError(
            f"{path}: no such file; give a SentencePiece model, a tokenizer.json or a vocabulary file"
        )
    if path.suffix == ".json":
        return read_tokenizer_json(read_json(path), name=str(path))
    if path.suffix == ".spm" and (path.parent / "vocab.json").is_file():
        return read_marian(path.parent, path.name)
    if path.suffix in (".model", ".spm"):
        return read_sentencepiece(path)
    lines = read_tokens(path)
    if is_wordpiece(lines):
        return read_tokenizer_json(wordpiece_json(lines, path.parent), name=str(path))
    return read_subword_nmt(path)


def _load_directory(path: Path) -> Vocabulary:
    if (path / "tokenizer.json").is_file():
        data = read_json(path / "tokenizer.json")
        return read_tokenizer_json(data, specials=read_specials(path), name=str(path))
    if (path / "vocab.json").is_file() and (path / "source.spm").is_file():
        return read_marian(path)
    models = sorted(path.glob("*.model")) or sorted(path.glob("*.spm"))
    # With a configuration beside it, transformers may number the pieces differently (XLM-R, mBART, T5).
    if models and (path / "tokenizer_config.json").is_file():
        tokenizer = read_by_transformers(path)
        if not tokenizer.is_fast:
            raise DataError(f"{path}: a tokenizer that transformers does not read as a tokenizer.json")
        data = json.loads(tokenizer.backend_tokenizer.to_str())
        return read_tokenizer_json(data, specials=tokenizer.special_tokens_map, name=str(path))
    if models:
        return read_sentencepiece(models[0])
    if (path / "vocab.txt").is_file():
        lines = read_tokens(path / "vocab.txt")
        specials = read_specials(path)
        return read_tokenizer_json(wordpiece_json(lines, path), specials=specials, name=str(path))
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return read_tokenizer_json(byte_level_json(path), specials=read_specials(path), name=str(path))
    raise DataError(
        f"{path}: no tokenizer found; expected tokenizer.json, *.model, vocab.txt, "
        "vocab.json with merges.txt, or vocab.json with source.spm"
    )


def read_by_transformers(name: str | Path, revision: str | None = None) -> Any:
    """Read a tokenizer of a directory or a hub name as ``transformers`` does.

    Raises:
        DataError: It cannot.
    """
    import transformers  # takes seconds

    try:
        return transformers.AutoTokenizer.from_pretrained(name, revision=revision or "main")
    except (ImportError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{name}: transformers cannot read this tokenizer ({error})") from error


def read_subword_nmt(path: str | Path) -> Vocabulary:
    """Read a subword-nmt or fairseq vocabulary, whose tokens are segmented longest match first.

    Args:
        path: ``token frequency`` (or only ``token``) lines. The first line has id 0, unless the file lacks
            the four fairseq specials, which then come first (``<s> <pad> </s> <unk>``) as fairseq numbers
            them.

    Raises:
        DataError: The file is empty, or text, or repeats a token.
    """
    lines = read_tokens(Path(path))
    surfaces = [line.split(" ", 1)[0] for line in lines if line.strip()]
    if not surfaces:
        raise DataError(f"{path}: the vocabulary has no tokens")
    first: dict[str, int] = {}
    for number, surface in enumerate(surfaces, start=1):
        if first.setdefault(surface, number) != number:
            raise DataError(
                f"{path}: '{surface}' occurs twice (entries {first[surface]} and {number}), so it is no "
                "vocabulary; if it is text, train a tokenizer on it first"
            )
    if not any(role_of(surface) for surface in surfaces):
        # fairseq's dict.txt leaves its four special tokens out.
        surfaces = ["<s>", "<pad>", "</s>", "<unk>", *surfaces]
    kinds = [Kind.SPECIAL if role_of(surface) else Kind.NORMAL for surface in surfaces]
    ids = {surface: i for i, surface in enumerate(surfaces) if kinds[i] is Kind.NORMAL}
    return make_vocabulary(surfaces, kinds, SUBWORD_NMT, GreedySegmenter(ids, SUBWORD_NMT), name=str(path))


# Formats older than ``tokenizer.json``, converted to it: WordPiece, byte-level BPE, subword-nmt.


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
