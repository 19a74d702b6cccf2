"""Read the vocabulary of a SentencePiece model, a Hugging Face tokenizer or a subword-nmt vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nlgraft.errors import DataError
from nlgraft.vocab.huggingface import read_tokenizer_json
from nlgraft.vocab.segmenters import BpeSegmenter, GreedySegmenter, Segmenter, UnigramSegmenter
from nlgraft.vocab.tokens import (
    SENTENCEPIECE,
    SENTENCEPIECE_SUFFIX,
    SUBWORD_NMT,
    Kind,
)
from nlgraft.vocab.vocabulary import Vocabulary, make_vocabulary, role_of


def load_vocabulary(path: str | Path) -> Vocabulary:
    """Read a vocabulary, recognising its kind from the file itself.

    Args:
        path: A SentencePiece model, a ``tokenizer.json``, a WordPiece ``vocab.txt``, a subword-nmt or fairseq
            vocabulary (``token frequency`` lines), or a directory that holds one of
            ``tokenizer.json``, ``*.model``, ``vocab.txt``, ``vocab.json`` with ``merges.txt``.

    Returns:
        The vocabulary.

    Raises:
        DataError: The path is missing or holds nothing of the kind.
    """
    path = Path(path)
    if path.is_dir():
        return _load_directory(path)
    if not path.is_file():
        raise DataError(
            f"{path}: no such file; give a SentencePiece model, a tokenizer.json or a vocabulary file"
        )
    if path.suffix == ".json":
        return read_tokenizer_json(json.loads(path.read_text("utf-8")), name=str(path))
    if path.suffix in (".model", ".spm"):
        return read_sentencepiece(path)
    lines = path.read_text("utf-8").splitlines()
    if any(line.startswith("##") for line in lines) or "[CLS]" in lines:
        return read_tokenizer_json(_wordpiece_json(lines), name=str(path))
    return read_subword_nmt(path)


def _load_directory(path: Path) -> Vocabulary:
    if (path / "tokenizer.json").is_file():
        specials: dict[str, Any] = {}
        for extra in ("special_tokens_map.json", "tokenizer_config.json"):
            if (path / extra).is_file():
                specials |= json.loads((path / extra).read_text("utf-8"))
        data = json.loads((path / "tokenizer.json").read_text("utf-8"))
        return read_tokenizer_json(data, specials=specials, name=str(path))
    models = sorted(path.glob("*.model")) or sorted(path.glob("*.spm"))
    if models:
        return read_sentencepiece(models[0])
    if (path / "vocab.txt").is_file():
        return load_vocabulary(path / "vocab.txt")
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        merges = [line for line in (path / "merges.txt").read_text("utf-8").splitlines() if line[:1] != "#"]
        vocab = json.loads((path / "vocab.json").read_text("utf-8"))
        model = {"type": "BPE", "vocab": vocab, "merges": [line for line in merges if line]}
        return read_tokenizer_json({"model": model, "pre_tokenizer": {"type": "ByteLevel"}}, name=str(path))
    raise DataError(
        f"{path}: no tokenizer found; expected tokenizer.json, *.model, vocab.txt, "
        "or vocab.json with merges.txt"
    )


def _wordpiece_json(lines: list[str]) -> dict[str, Any]:
    is_special = [bool(re.fullmatch(r"\[(?!unused)[A-Z]+\]", line)) for line in lines]
    added = [{"id": i, "content": lines[i], "special": True} for i in range(len(lines)) if is_special[i]]
    is_lower = not any(
        line != line.lower() for line, special in zip(lines, is_special, strict=True) if not special
    )
    return {
        "model": {
            "type": "WordPiece",
            "vocab": {line: i for i, line in enumerate(lines)},
            "unk_token": "[UNK]",
        },
        "normalizer": {"type": "BertNormalizer", "lowercase": is_lower},
        "added_tokens": added,
    }


def read_sentencepiece(path: str | Path) -> Vocabulary:
    """Read a SentencePiece model, unigram or BPE.

    Args:
        path: The ``.model`` file.

    Returns:
        The vocabulary; bytes and control symbols have kinds of their own.

    Raises:
        DataError: The file is not a SentencePiece model, or of type word or char.
    """
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path}: not a SentencePiece model ({error})") from error
    surfaces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    kinds = [_sentencepiece_kind(processor, i, surface) for i, surface in enumerate(surfaces)]
    trainer = dict(_fields(dict(_fields(processor.serialized_model_proto())).get(2, b"")))
    marking = SENTENCEPIECE_SUFFIX if trainer.get(24) else SENTENCEPIECE
    ids = {s: i for i, s in enumerate(surfaces) if kinds[i] is Kind.NORMAL}
    scores = {surface: processor.get_score(i) for surface, i in ids.items()}
    model_type = trainer.get(3, 1)
    segmenter: Segmenter
    if model_type == 1:
        segmenter = UnigramSegmenter(ids, scores, marking)
    elif model_type == 2:
        segmenter = BpeSegmenter(ids, marking, result_scores=scores)
    else:
        raise DataError(
            f"{path}: a SentencePiece model of words or characters has no subwords; use unigram or bpe"
        )
    roles = {"pad": processor.pad_id(), "unk": processor.unk_id()}
    roles |= {"bos": processor.bos_id(), "eos": processor.eos_id()}
    named = {role_of(s): i for i, s in enumerate(surfaces) if kinds[i] is Kind.SPECIAL}
    roles |= {role: i for role, i in named.items() if role in ("cls", "sep", "mask")}
    return make_vocabulary(
        surfaces,
        kinds,
        marking,
        segmenter,
        roles={role: i for role, i in roles.items() if i >= 0},
        normalise=lambda text: processor.normalize(text).replace("▁", " ").strip(),
        name=str(path),
    )


def _sentencepiece_kind(processor: Any, identity: int, surface: str) -> Kind:
    if processor.is_byte(identity):
        return Kind.BYTE
    if processor.is_unused(identity):
        return Kind.UNUSED
    if processor.is_control(identity) or processor.is_unknown(identity) or role_of(surface):
        return Kind.SPECIAL
    return Kind.NORMAL


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Read the top-level fields of a protocol buffer, the last of each number winning in a dict.

    A model file says only here whether it is unigram or BPE; the SentencePiece library does not.
    """
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = _varint(message, position)
            yield number, value
        elif wire_type == 2:
            length, position = _varint(message, position)
            yield number, message[position : position + length]
            position += length
        else:
            position += 8 if wire_type == 1 else 4


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def read_subword_nmt(path: str | Path, codes: str | Path | None = None) -> Vocabulary:
    """Read a subword-nmt or fairseq vocabulary.

    Args:
        path: ``token frequency`` (or only ``token``) lines, the first line getting id 0 unless the file lacks
            the four fairseq specials, which then come first (``<s> <pad> </s> <unk>``), as fairseq numbers
            them.
        codes: The merges (``bpe.codes``); without them tokens are cut longest match first.

    Returns:
        The vocabulary.

    Raises:
        DataError: The file is empty.
    """
    lines = Path(path).read_text("utf-8").splitlines()
    surfaces = [line.rsplit(" ", 1)[0] if " " in line else line for line in lines if line.strip()]
    if not any(role_of(surface) for surface in surfaces):
        surfaces = ["<s>", "<pad>", "</s>", "<unk>", *surfaces]
    kinds = [Kind.SPECIAL if role_of(surface) else Kind.NORMAL for surface in surfaces]
    ids = {surface: i for i, surface in enumerate(surfaces) if kinds[i] is Kind.NORMAL}
    segmenter: Segmenter = GreedySegmenter(ids, SUBWORD_NMT)
    if codes is not None:
        segmenter = BpeSegmenter(ids, SUBWORD_NMT, pair_ranks=_read_codes(Path(codes)))
    return make_vocabulary(surfaces, kinds, SUBWORD_NMT, segmenter, name=str(path))


def _read_codes(path: Path) -> Mapping[tuple[str, str], int]:
    ranks: dict[tuple[str, str], int] = {}
    for line in path.read_text("utf-8").splitlines():
        parts = line.split()
        if not line.startswith("#version") and len(parts) >= 2:
            ranks.setdefault((parts[0], parts[1]), len(ranks))
    return ranks
