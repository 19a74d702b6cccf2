"""Smaller vocabularies: rare tokens are dropped, and text of kept tokens is encoded as before."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.segmenters import merges, rank_by
from nlgraft.vocab.tokenizers.tokenizer_json import model_ids, read_merges

BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
"""Tokens of single bytes, in which SentencePiece spells unknown characters."""


@dataclass(frozen=True)
class Pruned:
    """A pruned tokenizer.

    Attributes:
        document: Its ``tokenizer.json``.
        old_ids: Old id of each new one; the order stays.
    """

    document: dict[str, Any]
    old_ids: tuple[int, ...]


def prune_tokenizer(
    document: Mapping[str, Any],
    counts: Sequence[int],
    *,
    min_count: int = 1,
    size: int | None = None,
) -> Pruned:
    """Drop tokens that occur less than ``min_count`` times; then the rarest, until ``size`` are left.

    Special and added tokens and bytes are kept, and with BPE all parts of which merges make a kept token.
    Single characters are kept too, unless the tokenizer spells unknown ones in bytes: then rare ones go.
    Text whose old tokens are all kept is encoded as before.

    Args:
        document: A parsed ``tokenizer.json`` of BPE, WordPiece or Unigram.
        counts: Occurrences of each id in the text.
        min_count: Occurrences that keep a token.
        size: Number of tokens at most; None for any.

    Raises:
        DataError: Another kind of tokenizer, or the tokens that must stay are more than ``size``.
    """
    model = document["model"]
    if "vocab" not in model or model.get("type", "BPE") not in ("BPE", "WordPiece", "Unigram"):
        raise DataError(f"a {model.get('type')} tokenizer cannot be pruned; allowed: BPE, WordPiece, Unigram")
    ids = model_ids(model)
    added = {entry["content"]: entry["id"] for entry in document.get("added_tokens") or []}
    parts = _Parts(model)
    has_all_bytes = bool(model.get("byte_fallback")) and ids.keys() >= BYTES
    kept = {piece for piece in ids if _must_stay(piece, model, parts, has_all_bytes)} | set(added)
    padding = document.get("padding")
    if padding and padding["pad_token"] in ids:
        # The padding token need not be an added one.
        kept.add(padding["pad_token"])
    if size is not None and len(kept) > size:
        raise DataError(
            f"size is {size}, but {len(kept)} special tokens, bytes and single characters must stay"
        )
    everything = ids | added
    for piece in sorted(ids, key=lambda piece: (-counts[ids[piece]], ids[piece])):
        if piece in kept or counts[ids[piece]] < min_count:
            continue
        needed = {piece, *parts.of(piece)} - kept
        if size is None or len(kept) + len(needed) <= size:
            kept |= needed
    old_ids = sorted({everything[piece] for piece in kept if piece in everything})
    new_ids = {old: new for new, old in enumerate(old_ids)}
    return Pruned(_renumbered(document, kept, new_ids, parts), tuple(old_ids))


def _must_stay(
    piece: str,
    model: Mapping[str, Any],
    parts: _Parts,
    has_all_bytes: bool,
) -> bool:
    """Return True for tokens of which all others are made: bytes, characters, the unknown token."""
    if piece in (model.get("unk_token"), _unknown(model)):
        return True
    if model.get("byte_fallback") and piece in BYTES:
        return True
    core = piece.removeprefix(parts.prefix) or piece
    if len(core) == 1 and has_all_bytes:
        return False
    if model.get("merges"):
        return piece not in parts.made
    return len(core) == 1


def _unknown(model: Mapping[str, Any]) -> str | None:
    index = model.get("unk_id")
    return None if index is None else model["vocab"][index][0]


class _Parts:
    """Finds what BPE makes on the way to a token.

    Attributes:
        pairs: Merges, the earliest learned first.
        prefix: Mark of inner tokens, which a merge drops from its right side.
        made: The merge that makes a token, of several the first.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        self.pairs = read_merges(model)
        self.prefix = model.get("continuing_subword_prefix") or ""
        self._rank = rank_by(self.pairs)
        self.made = {self.whole(*pair): pair for pair in reversed(self.pairs)}

    def whole(self, first: str, second: str) -> str:
        """Merge two symbols."""
        return first + second.removeprefix(self.prefix)

    def of(self, piece: str) -> Iterator[str]:
        """Yield the symbols that stand for parts of a token while its text is merged, characters first."""
        symbols = [(character, 0) for character in self._characters(piece)]
        yield from (character for character, _ in symbols)
        yield from merges(symbols, self._rank, self.prefix, 0)

    def _characters(self, piece: str) -> Iterable[str]:
        """Take a token apart by the merges that name it, down to what no merge makes."""
        if piece not in self.made:
            return [piece]
        first, second = self.made[piece]
        return [*self._characters(first), *self._characters(second)]


def _renumbered(
    document: Mapping[str, Any],
    kept: set[str],
    new_ids: Mapping[int, int],
    parts: _Parts,
) -> dict[str, Any]:
    """Write the kept tokens and merges with their new ids."""
    # a deep copy of the model, all tokens and merges, would take longer than everything else
    made = copy.deepcopy({**document, "model": None})
    model = made["model"] = dict(document["model"])
    if isinstance(model["vocab"], Mapping):
        model["vocab"] = {piece: new_ids[i] for piece, i in model["vocab"].items() if piece in kept}
    else:
        model["vocab"] = [pair for pair in model["vocab"] if pair[0] in kept]
        if model.get("unk_id") is not None:
            model["unk_id"] = new_ids[model["unk_id"]]
    if "merges" in model:
        model["merges"] = [
            merge
            for merge, pair in zip(model["merges"], parts.pairs, strict=True)
            if {*pair, parts.whole(*pair)} <= kept
        ]
    for entry in made.get("added_tokens") or []:
        entry["id"] = new_ids[entry["id"]]
    padding = made.get("padding")
    if padding and padding["pad_id"] in new_ids:
        padding["pad_id"] = new_ids[padding["pad_id"]]
    _renumber_template(made.get("post_processor"), new_ids)
    return made


def _renumber_template(part: Any, new_ids: Mapping[int, int]) -> None:
    """Renumber the tokens that are put around a text, in place."""
    if not isinstance(part, dict):
        return
    for inner in part.get("processors") or []:
        _renumber_template(inner, new_ids)
    for special in (part.get("special_tokens") or {}).values():
        special["ids"] = [new_ids[i] for i in special["ids"]]
    for role in ("sep", "cls"):
        if role in part:
            part[role] = [part[role][0], new_ids[part[role][1]]]
