"""Nested settings by dotted path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def dotted(values: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of everything in nested mappings; lists and empty mappings are values."""
    for key, value in values.items():
        path = f"{parent}.{key}" if parent else key
        if isinstance(value, Mapping) and value:
            yield from dotted(value, path)
        else:
            yield path, value
