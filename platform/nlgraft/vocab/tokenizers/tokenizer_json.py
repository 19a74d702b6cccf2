"""Read the vocabulary of a Hugging Face ``tokenizer.json`` as the file specifies it, without heuristics.

Neither ``transformers`` nor ``tokenizers`` is needed.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.segmenters import BpeSegmenter, GreedySegmenter, Segmenter, UnigramSegmenter
from nlgraft.vocab.tokenizers.tokens import (
    BYTE_LEVEL,
    BYTE_LEVEL_END_OF_WORD,
    END_OF_WORD,
    SENTENCEPIECE,
    SUBWORD_NMT,
    WORDPIECE,
    Kind,
    Marking,
)
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary, make_vocabulary, role_of

_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""Unicode blocks that BERT puts spaces around (Devlin et al. 2019, released code)."""
MAX_TOKENS = 1 << 24
"""Far above the largest vocabulary there is: ids and sizes beyond it are damage and would fill memory."""
ROLE_FIELDS = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")


def read_tokenizer_json(
    data: Mapping[str, Any],
    *,
    specials: Mapping[str, Any] | None = None,
    codes: Mapping[tuple[str, str], int] | None = None,
    name: str = "tokenizer.json",
) -> Vocabulary:
    """Read a parsed ``tokenizer.json``.

    Args:
        data: The parsed file.
        specials: ``special_tokens_map.json`` or ``tokenizer_config.json``, which name the roles
            (``{"pad_token": "<pad>", ...}``); without it roles are found by the usual names.
        codes: Merges of a vocabulary of whole tokens that subword-nmt made.
        name: Name for messages.

    Returns:
        The vocabulary, one entry per id up to the highest id, id gaps kept as gaps.

    Raises:
        DataError: The model is of a type that has no subwords, or is not a tokenizer.
    """
    model = data.get("model")
    if not isinstance(model, Mapping) or "vocab" not in model:
        raise DataError(f"{name}: not a tokenizer.json (no model with a vocab)")
    added = {entry["content"]: entry for entry in data.get("added_tokens") or []}
    ids = read_ids(data)
    surfaces = tokens_by_id(ids, name)
    model_type = model.get("type") or _model_type(model)
    marking = _marking(model_type, data, name)
    is_isolated = _isolation(data) if model_type == "WordPiece" else _never
    has_byte_fallback = bool(model.get("byte_fallback"))
    kinds = [_kind(surface, added, has_byte_fallback) for surface in surfaces]
    for i, surface in enumerate(surfaces):
        if surface is None or surface in added or kinds[i] is not Kind.NORMAL:
            continue
        if not _is_reachable(surface, marking, is_isolated):
            # No text yields it, so it must not be matched, averaged or counted.
            kinds[i] = Kind.UNUSED
    normal = {s: i for i, s in enumerate(surfaces) if s is not None and kinds[i] is Kind.NORMAL}
    return make_vocabulary(
        surfaces,
        kinds,
        marking,
        _segmenter(model_type, model, normal, marking, codes, is_isolated),
        roles=_roles(specials, ids),
        normalise=_normaliser(data.get("normalizer")),
        is_isolated=is_isolated,
        name=name,
    )


def read_ids(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read the id of each token of a parsed ``tokenizer.json``, as they stand there."""
    added = {entry["content"]: entry["id"] for entry in data.get("added_tokens") or []}
    return _entries(data["model"]) | added


def _entries(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model["vocab"]
    if isinstance(vocab, Mapping):
        return dict(vocab)
    return {piece: identity for identity, (piece, _) in enumerate(vocab)}


def tokens_by_id(ids: Mapping[str, Any], name: str) -> list[str | None]:
    """Order tokens by id, None at a gap.

    Args:
        name: Name of the file for messages.

    Raises:
        DataError: An id is no number of a row, or that of two tokens.
    """
    for surface, identity in ids.items():
        if type(identity) is not int or not 0 <= identity < MAX_TOKENS:
            raise DataError(
                f"{name}: token {surface!r} has id {identity!r}, allowed is 0 to {MAX_TOKENS - 1:,}"
            )
    surfaces: list[str | None] = [None] * (max(ids.values(), default=-1) + 1)
    for surface, identity in ids.items():
        if surfaces[identity] is not None:
            raise DataError(
                f"{name}: tokens {surfaces[identity]!r} and {surface!r} have the same id {identity}"
            )
        surfaces[identity] = surface
    return surfaces


def _model_type(model: Mapping[str, Any]) -> str:
    """Infer the model type of old files, which leave it out, from the model's other fields."""
    if "merges" in model:
        return "BPE"
    return "WordPiece" if isinstance(model["vocab"], Mapping) else "Unigram"


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer, pre-tokenizer or decoder, sequences flattened."""
    if not isinstance(part, Mapping):
        return
    if part.get("type") == "Sequence":
        for key in ("normalizers", "pretokenizers", "decoders"):
            for inner in part.get(key) or []:
                yield from _steps(inner)
    else:
        yield part


def _marking(model_type: str, data: Mapping[str, Any], name: str) -> Marking:
    steps = [s for key in ("normalizer", "pre_tokenizer", "decoder") for s in _steps(data.get(key))]
    names = {step.get("type") for step in steps}
    model = data["model"]
    if model_type == "WordPiece":
        prefix = model.get("continuing_subword_prefix") or "##"
        return WORDPIECE if prefix == "##" else Marking(continuation_prefix=prefix)
    if model_type == "Unigram":
        return SENTENCEPIECE
    if model_type == "WordLevel" and any(token.endswith("@@") for token in model["vocab"]):
        return SUBWORD_NMT
    if model_type != "BPE":
        raise DataError(f"{name}: a {model_type} tokenizer has no subwords; allowed: WordPiece, BPE, Unigram")
    end_suffix = model.get("end_of_word_suffix") or ""
    if "ByteLevel" in names:
        return BYTE_LEVEL_END_OF_WORD if end_suffix else BYTE_LEVEL
    if end_suffix:
        return END_OF_WORD if end_suffix == "</w>" else Marking(end_suffix=end_suffix)
    if prefix := model.get("continuing_subword_prefix"):
        return Marking(continuation_prefix=prefix)
    return SENTENCEPIECE


def _kind(surface: str | None, added: Mapping[str, Any], has_byte_fallback: bool) -> Kind:
    if surface is None or re.fullmatch(r"\[unused\d+\]|<unused\d+>", surface):
        return Kind.UNUSED
    if has_byte_fallback and re.fullmatch(r"<0x[0-9A-F]{2}>", surface):
        return Kind.BYTE
    if surface in added:
        return Kind.SPECIAL if added[surface].get("special") else Kind.NORMAL
    return Kind.SPECIAL if role_of(surface) else Kind.NORMAL


def _isolation(data: Mapping[str, Any]) -> Callable[[str], bool]:
    """Test for characters that BERT isolates: punctuation, and Chinese characters where configured."""
    is_split = any(step.get("type") == "BertPreTokenizer" for step in _steps(data.get("pre_tokenizer")))
    is_chinese = any(
        step.get("type") == "BertNormalizer" and step.get("handle_chinese_chars", True)
        for step in _steps(data.get("normalizer"))
    )

    def is_isolated(character: str) -> bool:
        if is_split and (character in string.punctuation or unicodedata.category(character).startswith("P")):
            return True
        return is_chinese and any(low <= ord(character) <= high for low, high in _CHINESE)

    return cache(is_isolated)


def _never(character: str) -> bool:
    """Isolate no character."""
    return False


def _is_reachable(surface: str, marking: Marking, is_isolated: Callable[[str], bool]) -> bool:
    """Return True if some text yields a token; an isolated character is never part of another token."""
    prefix = marking.continuation_prefix
    text = surface.removeprefix(prefix) if len(surface) > len(prefix) else surface
    return (surface == text and len(text) == 1) or not any(map(is_isolated, text))


def _segmenter(
    model_type: str,
    model: Mapping[str, Any],
    normal: Mapping[str, int],
    marking: Marking,
    codes: Mapping[tuple[str, str], int] | None,
    is_isolated: Callable[[str], bool],
) -> Segmenter:
    if model_type == "WordLevel" and codes is not None:
        return BpeSegmenter(normal, marking, pair_ranks=codes)
    if model_type in ("WordPiece", "WordLevel"):
        return GreedySegmenter(normal, marking, is_isolated)
    if model_type == "Unigram":
        scores = {piece: score for piece, score in model["vocab"] if piece in normal}
        return UnigramSegmenter(normal, scores, marking)
    ranks: dict[tuple[str, str], int] = {}
    for merge in model.get("merges") or []:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        ranks.setdefault((left, right), len(ranks))
    return BpeSegmenter(normal, marking, pair_ranks=ranks)


def _roles(specials: Mapping[str, Any] | None, ids: Mapping[str, int]) -> dict[str, int] | None:
    if not specials:
        return None
    roles: dict[str, int] = {}
    for role in ROLE_FIELDS:
        value = specials.get(f"{role}_token")
        surface = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(surface, str) and surface in ids:
            roles[role] = ids[surface]
    return roles or None


def _normaliser(part: Any) -> Callable[[str], str]:
    """Compose the normalisation; a compiled SentencePiece table is approximated by NFKC."""
    functions = [function for step in _steps(part) if (function := _normaliser_step(step)) is not None]

    def normalise(text: str) -> str:
        for function in functions:
            text = function(text)
        return text

    return normalise


def _normaliser_step(step: Mapping[str, Any]) -> Callable[[str], str] | None:
    kind = step.get("type")
    if kind == "BertNormalizer":
        is_lower = bool(step.get("lowercase", True))
        strips = step.get("strip_accents")
        # As in BERT's code: unset means that accents go when case goes.
        strips = is_lower if strips is None else bool(strips)
        return lambda text: _lower(_strip_accents(text) if strips else text, is_lower)
    if kind == "Precompiled":
        return lambda text: unicodedata.normalize("NFKC", text)
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return lambda text: unicodedata.normalize(kind, text)  # type: ignore[arg-type]
    simple: dict[Any, Callable[[str], str]] = {
        "Lowercase": str.lower,
        "StripAccents": _strip_marks,
        "Strip": str.strip,
    }
    return simple.get(kind)


def _lower(text: str, is_lower: bool) -> str:
    return text.lower() if is_lower else text


def _strip_accents(text: str) -> str:
    return _strip_marks(unicodedata.normalize("NFD", text))


def _strip_marks(text: str) -> str:
    return "".join(character for character in text if unicodedata.category(character) != "Mn")
