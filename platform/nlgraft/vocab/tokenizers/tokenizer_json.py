"""Read the vocabulary of a Hugging Face ``tokenizer.json`` as the file specifies it, without heuristics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.encoding import open_tokenizer, search_errors
from nlgraft.vocab.tokenizers.segmenters import (
    BpeSegmenter,
    GreedySegmenter,
    UnigramSegmenter,
    rank_by,
)
from nlgraft.vocab.tokenizers.vocabulary import (
    BYTE_LEVEL,
    BYTE_LEVEL_END_OF_WORD,
    END_OF_WORD,
    SENTENCEPIECE,
    SUBWORD_NMT,
    WORDPIECE,
    Kind,
    Marking,
    Segmenter,
    Vocabulary,
    make_vocabulary,
    normal_ids,
    role_of,
)

MAX_TOKENS = 1 << 24
"""Far above the largest vocabulary there is: ids and sizes beyond it are damage and would fill memory."""
ROLE_FIELDS = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")


def read_tokenizer_json(
    data: Mapping[str, Any],
    *,
    specials: Mapping[str, Any] | None = None,
    name: str = "tokenizer.json",
) -> Vocabulary:
    """Read a parsed ``tokenizer.json``.

    Args:
        data: The parsed file.
        specials: ``special_tokens_map.json`` or ``tokenizer_config.json``, which name the roles
            (``{"pad_token": "<pad>", ...}``); without it roles are found by the usual names.
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
    is_isolated = _isolation(data, name) if model_type == "WordPiece" else _never
    has_byte_fallback = bool(model.get("byte_fallback"))
    kinds = [_kind(surface, added, has_byte_fallback) for surface in surfaces]
    for i, surface in enumerate(surfaces):
        if surface is None or surface in added or kinds[i] is not Kind.NORMAL:
            continue
        if not _is_reachable(surface, marking, is_isolated):
            # No text yields it, so it must not be matched, averaged or counted.
            kinds[i] = Kind.UNUSED
    normal = normal_ids(surfaces, kinds)
    return make_vocabulary(
        surfaces,
        kinds,
        marking,
        _segmenter(model_type, model, normal, marking, is_isolated),
        roles=_roles(specials, ids),
        normalise=_normaliser(data, marking, name),
        is_isolated=is_isolated,
        name=name,
    )


def read_ids(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read the id of each token of a parsed ``tokenizer.json``, as they stand there."""
    added = {entry["content"]: entry["id"] for entry in data.get("added_tokens") or []}
    return model_ids(data["model"]) | added


def model_ids(model: Mapping[str, Any]) -> dict[str, int]:
    """Read the id of each token of the model of a ``tokenizer.json``, added ones left out."""
    vocab = model["vocab"]
    if isinstance(vocab, Mapping):
        return dict(vocab)
    return {piece: identity for identity, (piece, _) in enumerate(vocab)}


def read_merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Read the merges of a BPE, which files hold as pairs or as strings."""
    merges = model.get("merges") or []
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
    return [(first, second) for first, second in pairs]


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


def _marking(
    model_type: str,
    data: Mapping[str, Any],
    name: str,
) -> Marking:
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


def _kind(
    surface: str | None,
    added: Mapping[str, Any],
    has_byte_fallback: bool,
) -> Kind:
    if surface is None or re.fullmatch(r"\[unused\d+\]|<unused\d+>", surface):
        return Kind.UNUSED
    if has_byte_fallback and re.fullmatch(r"<0x[0-9A-F]{2}>", surface):
        return Kind.BYTE
    is_special = added[surface].get("special") if surface in added else role_of(surface)
    return Kind.SPECIAL if is_special else Kind.NORMAL


_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "BertNormalizer": {
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "Strip": {"strip_left": True, "strip_right": True},
}
"""Settings that old files leave out, though the library insists on them."""


def _library(
    steps: Sequence[Mapping[str, Any]],
    name: str,
    pre_tokenizer: Any = None,
) -> Any:
    """Open the steps of a normaliser and a pre-tokenizer with their own library, without a vocabulary."""
    normalizers = [{**_DEFAULTS.get(str(step.get("type")), {}), **step} for step in steps]
    document = {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    return open_tokenizer(document, name)


def _isolation(data: Mapping[str, Any], name: str) -> Callable[[str], bool]:
    """Test for characters that are words of their own anywhere; of BERT punctuation and Chinese ones."""
    library = _library([*_steps(data.get("normalizer"))], name, data.get("pre_tokenizer"))
    if library.pre_tokenizer is None:
        return _never

    def is_isolated(character: str) -> bool:
        with search_errors():
            text = library.normalizer.normalize_str(f"a{character}{character}a")
            return len(library.pre_tokenizer.pre_tokenize_str(text)) == 4

    return cache(is_isolated)


def _never(character: str) -> bool:
    """Isolate no character."""
    return False


def _is_reachable(
    surface: str,
    marking: Marking,
    is_isolated: Callable[[str], bool],
) -> bool:
    """Return True if some text yields a token; an isolated character is never part of another token."""
    prefix = marking.continuation_prefix
    text = surface.removeprefix(prefix) if len(surface) > len(prefix) else surface
    return (surface == text and len(text) == 1) or not any(map(is_isolated, text))


def _segmenter(
    model_type: str,
    model: Mapping[str, Any],
    normal: Mapping[str, int],
    marking: Marking,
    is_isolated: Callable[[str], bool],
) -> Segmenter:
    if model_type in ("WordPiece", "WordLevel"):
        return GreedySegmenter(normal, marking, is_isolated)
    if model_type == "Unigram":
        scores = {piece: score for piece, score in model["vocab"] if piece in normal}
        return UnigramSegmenter(normal, scores, marking)
    return BpeSegmenter(normal, marking, rank_by(read_merges(model)))


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


def _normaliser(
    data: Mapping[str, Any],
    marking: Marking,
    name: str,
) -> Callable[[str], str]:
    """Give the normalisation of text within a word, without the steps that add marks or spell bytes."""
    # Of spaces around Chinese characters _isolation knows.
    steps = [
        {**step, "handle_chinese_chars": False} if step.get("type") == "BertNormalizer" else step
        for step in _steps(data.get("normalizer"))
        if step.get("type") not in ("Prepend", "ByteLevel")
    ]
    if not steps:
        return str
    library = _library(steps, name)
    space = SENTENCEPIECE.start_prefix if marking == SENTENCEPIECE else " "

    def normalise(text: str) -> str:
        with search_errors():
            return library.normalizer.normalize_str(text).replace(space, " ")

    return normalise


def added_token(identity: int, content: str) -> dict[str, Any]:
    """Return the entry of a special token in ``tokenizer.json``."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": identity, "content": content, **flags, "special": True}
