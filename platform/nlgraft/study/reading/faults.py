"""Explanations of pydantic's errors: the path, the value, what is allowed, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nlgraft.basics.errors import nearest
from nlgraft.study.data import paths
from nlgraft.study.reading.knobs import Place

_MOST_SEEDS = 20
_QUOTED = re.compile(r"'([^']*)'")
Parts = tuple[str | int, ...]
"""Place of a value: keys and indices."""
_RULES = ("value_error", "assertion_error")


@dataclass(frozen=True)
class Fault:
    """One value that a model refuses.

    Attributes:
        parts: Path of the value: keys and indices.
        message: The value, and what is allowed.
        is_unknown_key: True where the model does not know the key itself.
        is_missing: True where a value must be given and is not.
    """

    parts: Parts
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
    """Explain the validation error of some values: one fault per path.

    If pydantic tried several variants at one path, a rule of the model is preferred to an error of type.
    """
    by_path: dict[Parts, Fault] = {}
    for details in error.errors(include_url=False):
        least = details.get("ctx", {}).get("min_length")
        if details["type"] == "too_short" and len(details["input"]) >= least:
            # Pydantic does not count the items that it refuses, and reports each of them besides.
            continue
        fault = _fault(details, model, values)
        if details["type"] in _RULES or fault.parts not in by_path:
            by_path[fault.parts] = fault
    return list(by_path.values())


def take_out(values: Any, parts: Parts) -> tuple[Any, Any]:
    """Remove a key of nested values, in place; return the mapping that had it, and its value."""
    for part in parts[:-1]:
        values = values[part]
    return values, values.pop(parts[-1], None)


def describe(value: Any) -> str:
    """Describe a JSON value in a few words that tell its type."""
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
    kind, location = details["type"], details["loc"]
    parts: list[str | int] = []
    node: Any = values
    place = Place.root(model)
    for position, part in enumerate(location):
        if kind in ("extra_forbidden", "missing") and position == len(location) - 1:
            parts.append(part)
        elif (child := _child(node, part)) is not paths.MISSING:
            # A part that leads nowhere names a variant of a union, which the file does not mention.
            parts.append(part)
            place, node = place.fitting(node).step(part), child
    if kind == "extra_forbidden":
        hint = nearest(str(parts[-1]), place.fitting(node).keys)
        return Fault(tuple(parts), f"unknown key {str(parts[-1])!r}. {hint}", is_unknown_key=True)
    if kind == "missing":
        return Fault(tuple(parts), "is missing; it must be given", is_missing=True)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = _QUOTED.findall(str(details.get("ctx", {})["discriminator"]))[0]
        allowed = [str(choice) for choice in place.step(tag).choices]
        reason = f"{node[tag]!r} is not allowed" if kind == "union_tag_invalid" else "is missing"
        return Fault((*parts, tag), f"{reason}. {nearest(str(node.get(tag)), allowed)}")
    is_system = "seeds" not in model.model_fields
    return Fault(tuple(parts), _message(details, place) + _advice(details, place, is_system=is_system))


def _advice(details: ErrorDetails, place: Place, *, is_system: bool) -> str:
    """Say how to write several values: a list where one is expected, a factor for one setting."""
    value, location = details["input"], details["loc"]
    if details["type"] in _RULES or not place.variants:
        return ""
    is_list_expected = details["type"] in ("list_type", "tuple_type")
    if is_list_expected and not isinstance(value, list | tuple | dict):
        is_number = location == ("seeds",) and isinstance(value, int) and 0 < value <= _MOST_SEEDS
        return f"; write {[*range(1, value + 1)] if is_number else [value]}"
    if is_system and isinstance(value, list | tuple) and value and not is_list_expected:
        path = ".".join(map(str, location))
        levels = ", ".join(map(str, value))
        factor = f"{{{location[-1]}: {{target: {path}, levels: [{levels}], baseline: {value[0]}}}}}"
        return (
            f"; to vary it, give {path}={levels.replace(' ', '')} after the study, or write factors: {factor}"
        )
    return ""


def _child(node: Any, part: str | int) -> Any:
    if isinstance(node, dict):
        return node.get(part, paths.MISSING)
    if isinstance(node, list) and isinstance(part, int) and part < len(node):
        return node[part]
    return paths.MISSING


def _message(details: ErrorDetails, place: Place) -> str:
    value = details["input"]
    if details["type"] in _RULES:
        return str(details.get("ctx", {})["error"])
    if details["type"] in ("literal_error", "enum"):
        return f"{describe(value)} is not allowed. {nearest(str(value), list(map(str, place.choices)))}"
    if not place.variants:
        return f"{details['msg'][:1].lower()}{details['msg'][1:]}, got {describe(value)}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    hint = "; quote it" if is_number and place.type == "text" else ""
    return f"expected {place.text}, got {describe(value)}{hint}"
