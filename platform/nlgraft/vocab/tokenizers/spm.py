"""SentencePiece models: read, renumbered as Marian does, and converted to ``tokenizer.json``."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import sentencepiece

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json
from nlgraft.text.tokenizers import merges_of, parse_sentencepiece
from nlgraft.vocab.tokenizers.segmenters import BpeSegmenter, UnigramSegmenter
from nlgraft.vocab.tokenizers.tokenizer_json import added_token, tokens_by_id
from nlgraft.vocab.tokenizers.vocabulary import (
    SENTENCEPIECE,
    SENTENCEPIECE_SUFFIX,
    Kind,
    Segmenter,
    Vocabulary,
    make_vocabulary,
    normal_ids,
    role_of,
)

UNIGRAM, BPE = 1, 2
"""Numbers of the model types in the model file."""


def read_sentencepiece(path: str | Path) -> Vocabulary:
    """Read a SentencePiece model, unigram or BPE; bytes and control symbols have kinds of their own.

    Raises:
        DataError: The file is not a SentencePiece model, or one of words or characters.
    """
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path}: not a SentencePiece model ({error})") from error
    surfaces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    kinds = [_sentencepiece_kind(processor, i, surface) for i, surface in enumerate(surfaces)]
    trainer = parse_sentencepiece(processor.serialized_model_proto()).trainer_spec
    marking = SENTENCEPIECE_SUFFIX if trainer.treat_whitespace_as_suffix else SENTENCEPIECE
    ids = normal_ids(surfaces, kinds)
    scores = {surface: processor.get_score(i) for surface, i in ids.items()}
    segmenter: Segmenter
    if trainer.model_type == UNIGRAM:
        segmenter = UnigramSegmenter(ids, scores, marking)
    elif trainer.model_type == BPE:
        ranks = {surface: -score for surface, score in scores.items()}
        segmenter = BpeSegmenter(ids, marking, lambda first, second: ranks.get(first + second))
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


def read_marian(directory: str | Path, spm: str = "source.spm") -> Vocabulary:
    """Read a Marian tokenizer: ids from ``vocab.json``, scores from one side's SentencePiece model.

    ``spm`` is ``source.spm`` or ``target.spm``.

    Raises:
        DataError: A file is missing or broken.
    """
    directory = Path(directory)
    ids: dict[str, int] = read_json(directory / "vocab.json")
    pieces = read_sentencepiece(directory / spm)
    assert isinstance(pieces.segmenter, UnigramSegmenter | BpeSegmenter)
    surfaces = tokens_by_id(ids, str(directory / "vocab.json"))
    kinds = [_marian_kind(surface) for surface in surfaces]
    return make_vocabulary(
        surfaces,
        kinds,
        pieces.marking,
        pieces.segmenter.with_ids(normal_ids(surfaces, kinds)),
        normalise=pieces.normalise,
        name=str(directory / spm),
    )


def _marian_kind(surface: str | None) -> Kind:
    if surface is None:
        return Kind.UNUSED
    is_language = surface.startswith(">>") and surface.endswith("<<")
    return Kind.SPECIAL if is_language or role_of(surface) else Kind.NORMAL


def _sentencepiece_kind(processor: Any, identity: int, surface: str) -> Kind:
    if processor.is_byte(identity):
        return Kind.BYTE
    if processor.is_unused(identity):
        return Kind.UNUSED
    if processor.is_control(identity) or processor.is_unknown(identity) or role_of(surface):
        return Kind.SPECIAL
    return Kind.NORMAL


def sentencepiece_json(path: str | Path) -> dict[str, Any]:
    """Convert a SentencePiece model to the ``tokenizer.json`` that segments text in the same way.

    Ids are the model's own.

    Raises:
        DataError: It is not a model of subwords, or it marks the ends of words.
    """
    vocabulary = read_sentencepiece(path)
    if vocabulary.marking == SENTENCEPIECE_SUFFIX:
        raise DataError(
            f"{path}: tokenizer.json cannot express treat_whitespace_as_suffix; train the model without it "
            "to use it with transformers"
        )
    model = parse_sentencepiece(Path(path).read_bytes())
    added = []
    for identity, piece in enumerate(model.pieces):
        if piece.type in (piece.CONTROL, piece.UNKNOWN, piece.USER_DEFINED):
            entry = added_token(identity, piece.piece)
            token = vocabulary.tokens[identity]
            added.append(entry | {"special": token is not None and token.kind is Kind.SPECIAL})
    has_bytes = bool(model.trainer_spec.byte_fallback)
    metaspace = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always" if model.normalizer_spec.add_dummy_prefix else "never",
        "split": bool(model.trainer_spec.split_by_whitespace),
    }
    steps = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]
    steps += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    steps += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model.normalizer_spec)},
        "pre_tokenizer": metaspace,
        "decoder": {"type": "Sequence", "decoders": steps} if has_bytes else metaspace,
        "model": _model_json(model, has_bytes),
    }


def _normalizers(spec: Any) -> list[dict[str, Any]]:
    steps = []
    if spec.precompiled_charsmap:
        # The normalisation table in the form that the tokenizers library reads.
        table = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if spec.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return steps


def _model_json(model: Any, has_bytes: bool) -> dict[str, Any]:
    trainer = model.trainer_spec
    if trainer.model_type == UNIGRAM:
        vocab = [[piece.piece, piece.score] for piece in model.pieces]
        return {"type": "Unigram", "unk_id": trainer.unk_id, "vocab": vocab, "byte_fallback": has_bytes}
    ids = {piece.piece: identity for identity, piece in enumerate(model.pieces)}
    normal = {piece.piece: piece.score for piece in model.pieces if piece.type == piece.NORMAL}
    # SentencePiece ranks merges by score; pairs that make the same piece tie.
    ranked = sorted(normal, key=lambda whole: (-normal[whole], ids[whole]))
    return {
        "type": "BPE",
        "vocab": ids,
        "merges": merges_of(dict.fromkeys(ranked)),
        "unk_token": trainer.unk_piece,
        "fuse_unk": True,
        "byte_fallback": has_bytes,
    }
