"""Dotted paths into nested mappings and lists: ``train.peak_lr``, ``factors.depth.levels[1]``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_INDEX = re.compile(r"\[(\d+)\]")
MISSING: Any = object()
"""Result of `get` for a path without a value; None is a value."""

KINDS = ("corpus", "kind", "type")
"""Keys that tell which variant a mapping describes."""


def split(path: str) -> list[str]:
    """Split a dotted path into its parts, indices (``[1]`` or ``.1``) as text.

    Raises:
        ValueError: A part is empty.
    """
    parts = _parts(path)
    if not all(parts):
        raise ValueError(f"{path!r} is no dotted path: a part of it is empty")
    return parts


def _parts(path: str) -> list[str]:
    return _INDEX.sub(r".\1", path).split(".")


def join(parent: str, part: str | int) -> str:
    """Extend a path, empty for the root, by a key or an index."""
    if isinstance(part, int):
        return f"{parent}[{part}]"
    return f"{parent}.{part}" if parent else part


def contains(outer: str, inner: str) -> bool:
    """Return True when one path, empty for the root, leads to another, or both are the same."""
    if not outer:
        return True
    # Part by part: `train.peak` does not lead to `train.peak_lr`.
    outer_parts = _parts(outer)
    return _parts(inner)[: len(outer_parts)] == outer_parts


def overlap(first: str, second: str) -> bool:
    """Return True when one path lies inside the other, or both are the same."""
    return contains(first, second) or contains(second, first)


def get(tree: Any, path: str) -> Any:
    """Return the value at a path of nested mappings and lists, or `MISSING`."""
    node, parts = tree, split(path)
    while parts and node is not MISSING:
        key, parts = _longest_key(node, parts)
        node = _child(node, key)
    return node


def get_all(tree: Any, chosen: Iterable[str]) -> dict[str, Any]:
    """Return the values at those of some paths that have one."""
    return {path: value for path in chosen if (value := get(tree, path)) is not MISSING}


def put(
    tree: dict[str, Any],
    path: str,
    value: Any,
) -> None:
    """Set the value at a path of nested mappings and lists, in place, adding mappings on the way.

    A key that itself contains dots is found when it is already there.

    Raises:
        ValueError: The path leads through a value without parts, or out of a list.
    """
    node: Any = tree
    key, remaining = _longest_key(node, split(path))
    while remaining:
        child = _child(node, key)
        # A null part is replaced: `search: null` may be given settings by an override.
        if child is MISSING or child is None:
            child = {}
            _store(node, key, child)
        node = child
        key, remaining = _longest_key(node, remaining)
    _store(node, key, value)


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings into a new one.

    A mapping of ``over`` is merged into the mapping it meets, unless it names another ``corpus``, ``kind`` or
    ``type``: then it replaces it. Everything else of ``over`` replaces what it meets.
    """
    merged = dict(under)
    for key, value in over.items():
        current = merged.get(key)
        if isinstance(current, Mapping) and isinstance(value, Mapping) and not _is_other_kind(current, value):
            merged[key] = merge(current, value)
        else:
            merged[key] = value
    return merged


def expand(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Nest the dotted keys of a mapping: its own keys only, not those further in.

    Raises:
        ValueError: Two keys set the same path; the message names it.
    """
    nested = {}
    for key, value in mapping.items():
        try:
            parts = split(key)
        except ValueError:
            # No path at all: the system's config will refuse the key.
            nested[key] = value
            continue
        for part in reversed(parts[1:]):
            value = {part: value}
        # Looked for before merging, which would let the later one win in silence.
        duplicate = _first_shared(nested, {parts[0]: value}, "")
        if duplicate is not None:
            raise ValueError(f"{duplicate!r} is set twice, once by {key!r}; set it once")
        nested = merge(nested, {parts[0]: value})
    return nested


def leaves(mapping: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of the values in nested mappings, whose top keys may be dotted paths.

    Empty mappings, and mappings with dots in their keys, are values.
    """
    for key, value in mapping.items():
        path = join(parent, key)
        # Of keys with dots nobody could tell any more where they had been nested.
        if isinstance(value, Mapping) and value and not any("." in inner for inner in value):
            yield from leaves(value, path)
        else:
            yield path, value


def ancestors(path: str) -> Iterator[str]:
    """Yield a path, as problems print it, and then its parents up to the first part."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]


def _longest_key(node: Any, parts: list[str]) -> tuple[str, list[str]]:
    if isinstance(node, Mapping):
        # The longest first: in `search.space` a dotted path is itself a key.
        for length in range(len(parts), 1, -1):
            key = ".".join(parts[:length])
            if key in node:
                return key, parts[length:]
    return parts[0], parts[1:]


def _child(node: Any, key: str) -> Any:
    if isinstance(node, Mapping):
        return node.get(key, MISSING)
    if isinstance(node, list) and key.isdigit() and int(key) < len(node):
        return node[int(key)]
    return MISSING


def _store(node: Any, key: str, value: Any) -> None:
    if isinstance(node, dict):
        node[key] = value
    elif isinstance(node, list):
        if not key.isdigit() or int(key) >= len(node):
            raise ValueError(
                f"there is no item {key} in a list of {len(node)}; allowed: 0 to {len(node) - 1}"
            )
        node[int(key)] = value
    else:
        raise ValueError(f"{key!r} cannot be set inside {node!r}, which has no parts")


def _is_other_kind(current: Mapping[str, Any], update: Mapping[str, Any]) -> bool:
    # Settings of one variant mean nothing to another.
    return any(key in current and key in update and current[key] != update[key] for key in KINDS)


def _first_shared(
    first: Any,
    second: Any,
    path: str,
) -> str | None:
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return path
    for key in second:
        if key in first:
            shared = _first_shared(first[key], second[key], join(path, key))
            if shared is not None:
                return shared
    return None
