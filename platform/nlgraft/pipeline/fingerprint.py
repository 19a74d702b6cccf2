"""Canonical JSON and its SHA-256: the identity of stages, trials and studies.

Type-exact on purpose: ``1``, ``1.0``, ``"1"`` and ``True`` are four different values, and ``-0.0`` is not
``0.0``. A false difference costs one run, a false equality costs a wrong result.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from nlgraft.basics.errors import ContractError

JSON: TypeAlias = "Mapping[str, JSON] | Sequence[JSON] | str | int | float | bool | None"
"""A value that can be fingerprinted."""

_ATOMS = (str, int, bool, type(None))
# Made once: json.dumps makes an encoder for every call, which takes longer than most values.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
# A value that contains itself would otherwise be copied until the stack is exhausted.
_MAX_DEPTH = 100


def plain_json(value: JSON) -> Any:
    """Copy a value into plain dicts, lists and atoms, refusing whatever JSON cannot hold exactly.

    Tuples become lists; nothing but immutable atoms is shared with the copy.

    Raises:
        ContractError: It contains something else than mappings with text keys, lists, tuples, text, finite
            numbers, booleans and None; the message names its path.
    """
    return _plain(value, (), 0)


_Path: TypeAlias = "tuple[()] | tuple[_Path, str | int]"
"""Keys on the way to a value, innermost last; written out only in an error, since most values are fine."""


def _plain(value: Any, path: _Path, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ContractError(
            f"{_text(path)[:80]}...: nested deeper than {_MAX_DEPTH} levels, or contains itself"
        )
    # Exact types: numpy.float64 is a float and an IntEnum an int, yet neither need print alike elsewhere.
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ContractError(f"{_text(path)}: {value} is not a finite number; JSON has no such value")
        return value
    if kind in (list, tuple):
        return [_plain(item, (path, index), depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise ContractError(f"{_text(path)}: key {key!r} is a {type(key).__name__}; keys must be str")
        return {key: _plain(item, (path, key), depth + 1) for key, item in value.items()}
    raise ContractError(
        f"{_text(path)}: {value!r} is a {kind.__module__}.{kind.__qualname__}; allowed are None, bool, int, "
        "float, str, lists, tuples and mappings with str keys. Convert it first, e.g. by "
        "model_dump(mode='json')"
    )


def _text(path: _Path) -> str:
    if not path:
        return "value"
    parent, key = path
    return f"{_text(parent)}[{key}]" if isinstance(key, int) else f"{_text(parent)}.{key}"


def canonical_json(value: JSON) -> str:
    """Write a value as its canonical JSON text: ASCII, keys sorted, no spaces, the same on every machine.

    Raises:
        ContractError: JSON cannot hold the value exactly.
    """
    return _dump(plain_json(value))


def _dump(plain: Any) -> str:
    try:
        return _ENCODER.encode(plain)
    except ValueError as error:  # an integer beyond Python's digit limit
        raise ContractError(f"value: {error}") from error


def fingerprint(value: JSON) -> str:
    """Compute the SHA-256 of a value's canonical JSON as 64 hexadecimal digits.

    Raises:
        ContractError: JSON cannot hold the value exactly.
    """
    return plain_fingerprint(plain_json(value))


def plain_fingerprint(plain: Any) -> str:
    """Compute the fingerprint of a value that ``plain_json`` returned, or that is made of such values."""
    return hashlib.sha256(_dump(plain).encode("ascii")).hexdigest()


# Nested settings by dotted path.


def dotted(values: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of everything in nested mappings; lists and empty mappings are values."""
    for key, value in values.items():
        path = f"{parent}.{key}" if parent else key
        if isinstance(value, Mapping) and value:
            yield from dotted(value, path)
        else:
            yield path, value
