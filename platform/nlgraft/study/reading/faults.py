"""Turning pydantic's errors into faults: the path, what was given, what is allowed, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nlgraft.errors import nearest
from nlgraft.study.reading.knobs import field_names, steps

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "mapping": "a mapping",
    "none": "null",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
_QUOTED = re.compile(r"'([^']*)'")


@dataclass(frozen=True)
class Fault:
    """One value that a model refuses.

    Attributes:
        parts: Path of the value: keys and indices.
        message: What was given and what is allowed.
        is_unknown_key: The key itself is not known.
        is_missing: The value must be given and is not.
    """

    parts: tuple[str | int, ...]
    message: str
    is_unknown_key: bool = False
    is_missing: bool = False

    @property
    def path(self) -> str:
        """The parts as a dotted path."""
        text = ""
        for part in self.parts:
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
        return text


def faults_of(error: ValidationError, model: type[BaseModel], values: Any) -> list[Fault]:
    """Explain a validation error.

    Args:
        error: What pydantic raised.
        model: The model that was validated against.
        values: The values that were given.

    Returns:
        One fault per path. Where pydantic tried several variants at one path, their messages are joined.
    """
    by_path: dict[tuple[str | int, ...], Fault] = {}
    for details in error.errors(include_url=False):
        fault = _fault(details, model, values)
        known = by_path.get(fault.parts)
        if known is not None and fault.message not in known.message:
            fault = Fault(fault.parts, f"{known.message}; or it {fault.message}", known.is_unknown_key)
        by_path[fault.parts] = known if known is not None and known.message == fault.message else fault
    return list(by_path.values())


def describe(value: Any) -> str:
    """Say what a value is, types included.

    Args:
        value: A JSON value.

    Returns:
        A few words.
    """
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(list(value)[:5]) or 'no keys'}"
    if isinstance(value, Sequence):
        return f"a list of {len(value)}"
    return str(value)


def _fault(details: ErrorDetails, model: type[BaseModel], values: Any) -> Fault:
    parts: list[str | int] = []
    node: Any = values
    annotations: list[Any] = [model]
    for position, part in enumerate(details["loc"]):
        is_key = isinstance(node, dict) and part in node
        is_index = isinstance(node, list) and isinstance(part, int) and part < len(node)
        is_last = position == len(details["loc"]) - 1
        if is_key or is_index:
            if not (is_last and details["type"] == "extra_forbidden"):
                annotations = steps(annotations, part, node)
                node = cast(Any, node)[part]
            parts.append(part)
        elif details["type"] == "missing" and is_last:
            parts.append(part)
        # Everything else in a location is the name of a union's variant.
    if details["type"] == "extra_forbidden":
        name = str(parts[-1])
        return Fault(
            tuple(parts),
            f"unknown key {name!r}. {nearest(name, field_names(annotations, node))}",
            is_unknown_key=True,
        )
    if details["type"] in ("union_tag_invalid", "union_tag_not_found"):
        parts.append(_QUOTED.findall(str(details.get("ctx", {})["discriminator"]))[0])
    return Fault(tuple(parts), _message(details), is_missing=details["type"] == "missing")


def _message(details: ErrorDetails) -> str:
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    base = (
        kind.removesuffix("_type")
        .removesuffix("_parsing")
        .removesuffix("_from_float")
        .split("_attributes")[0]
    )
    if kind == "missing":
        return "is missing; it must be given"
    if kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if base in _KINDS and (
        kind.endswith("_type") or kind in ("int_from_float", "int_parsing", "float_parsing")
    ):
        hint = "; quote it" if base == "string" and isinstance(given, (int, float)) else ""
        return f"must be {_KINDS[base]}, got {describe(given)}{hint}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"must be {words} {context[key]:g}, got {describe(given)}"
    if kind in ("literal_error", "enum"):
        allowed = _QUOTED.findall(context["expected"]) or [context["expected"]]
        return f"{describe(given)} is not allowed. {nearest(str(given), allowed)}"
    if kind == "union_tag_invalid":
        allowed = _QUOTED.findall(context["expected_tags"])
        return f"{context['tag']!r} is not allowed. {nearest(str(context['tag']), allowed)}"
    if kind == "union_tag_not_found":
        return "is missing; it says which kind this is"
    if kind in ("too_short", "string_too_short"):
        return f"must have at least {context['min_length']} entries or characters, got {describe(given)}"
    message = details["msg"]
    return f"{message[:1].lower()}{message[1:]}, got {describe(given)}"
