"""A study that may be wrong: parts that cannot be read are replaced, so that one mistake hides no other."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nlgraft.basics.errors import Problem, nearest
from nlgraft.study.data import paths
from nlgraft.study.data.study import Column, Statement, Study
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


def faults_of(
    error: ValidationError,
    model: type[BaseModel],
    values: Any,
) -> list[Fault]:
    """Explain the validation error of some values: one fault per path, or one per rule of the model there.

    If pydantic tried several variants at one path, a rule of the model is preferred to an error of type.
    """
    by_path: dict[Parts, list[Fault]] = {}
    for details in error.errors(include_url=False):
        context = details.get("ctx", {})
        if details["type"] == "too_short" and len(details["input"]) >= context.get("min_length", 0):
            # Pydantic does not count the items that it refuses, and reports each of them besides.
            continue
        fault = _fault(details, model, values)
        if details["type"] in _RULES or fault.parts not in by_path:
            broken = getattr(context.get("error"), "problems", [fault.message])
            by_path[fault.parts] = [replace(fault, message=message) for message in broken]
    return [fault for faults in by_path.values() for fault in faults]


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


def _fault(
    details: ErrorDetails,
    model: type[BaseModel],
    values: Any,
) -> Fault:
    kind, location = details["type"], details["loc"]
    parts: list[str | int] = []
    node: Any = values
    place = Place.root(model)
    for position, part in enumerate(location):
        # The key itself leads nowhere: it is unknown, or not there.
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


def _advice(
    details: ErrorDetails,
    place: Place,
    *,
    is_system: bool,
) -> str:
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
        override = f"{path}={levels.replace(' ', '')}"
        return f"; to vary it, give {override} after the study, or write factors: {factor}"
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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    hint = "; quote it" if is_number and place.type == "text" else ""
    return f"expected {place.text}, got {describe(value)}{hint}"


StudyT = TypeVar("StudyT", bound=Study)

_BLANK: dict[str, Any] = {
    "name": "blank",
    "system": "blank",
    "objective": {"metric": "blank", "direction": "maximize"},
    "seeds": [0],
}
"""What stands for required fields of a study."""

_BLANK_SEARCH = {"trials": 1, "space": {"blank": {"type": "float", "low": 0, "high": 1}}}
_BLANK_ENTRIES: dict[str, dict[str, Any]] = {
    "published": {"source": "blank", "metric": "blank", "values": {"blank": 0}},
    "claims": {},
}


@dataclass
class Draft(Generic[StudyT]):
    """The readable parts of a study.

    Attributes:
        study: A study of all parts that could be read, blank or without entries where they could not.
        unreadable: Top-level fields of which some part could not be read.
        blank: Field and index of the entries of ``published`` and ``claims`` that could not be read.
    """

    study: StudyT
    unreadable: set[str]
    blank: set[Parts]

    def can_use(self, *names: str) -> bool:
        """Return True when these fields were read completely."""
        return self.unreadable.isdisjoint(names)

    @property
    def published(self) -> list[tuple[str, Column]]:
        """Readable columns of published figures with their paths."""
        return self._entries("published", self.study.published)

    @property
    def claims(self) -> list[tuple[str, Statement]]:
        """Readable claims with their paths."""
        return self._entries("claims", self.study.claims)

    def _entries(self, name: str, entries: Iterable[Any]) -> list[tuple[str, Any]]:
        return [
            (f"{name}[{index}]", entry)
            for index, entry in enumerate(entries)
            if (name, index) not in self.blank
        ]


def read_draft(
    values: Mapping[str, Any],
    problems: list[Problem],
    kind: type[StudyT],
) -> Draft[StudyT]:
    """Read the values of a study file; what a part is refused for is a problem.

    Args:
        values: The values.
        problems: Receives the problems.
        kind: The class of the study.
    """
    remaining = copy.deepcopy(dict(values))
    replaced: set[Parts] = set()
    while True:
        # Each round takes out what it reports; the next one sees what that hid.
        try:
            study = kind.model_validate(remaining)
            break
        except ValidationError as error:
            faults = faults_of(error, Study, remaining)
        misspelt = _misspelt(faults)
        for fault in faults:
            if fault.is_unknown_key:
                parent, value = take_out(remaining, fault.parts)
                if fault.parts in misspelt:
                    parent[misspelt[fault.parts]] = value
        required = [(*parts[:-1], key) for parts, key in misspelt.items()]
        faults = [fault for fault in faults if fault.parts not in required]
        problems += [Problem(fault.path, fault.message) for fault in faults]
        replaced |= {_replace(remaining, fault.parts) for fault in faults if not fault.is_unknown_key}
    # The blank domain stood in for a part that could not be read; no rule may see it.
    if ("search",) in replaced and study.search is not None:
        space = {path: domain for path, domain in study.search.space.items() if path != "blank"}
        search = study.search.model_copy(update={"space": space})
        study = study.model_copy(update={"search": search})
    return Draft(study, {str(parts[0]) for parts in replaced}, replaced)


def _misspelt(faults: list[Fault]) -> dict[Parts, str]:
    """Find the required keys that unknown ones beside them nearly spell, by the place of the unknown one."""
    missing = [fault.parts for fault in faults if fault.is_missing]
    required_keys = {}
    for fault in faults:
        if not fault.is_unknown_key:
            continue
        siblings = [str(parts[-1]) for parts in missing if parts[:-1] == fault.parts[:-1]]
        near = difflib.get_close_matches(str(fault.parts[-1]), siblings, n=1)
        if near:
            required_keys[fault.parts] = near[0]
    return required_keys


def _replace(values: dict[Any, Any], parts: Parts) -> Parts:
    """Replace the smallest part around a refused value; return its place."""
    name, *inner = parts
    entries = values.get(name, {})
    if name in _BLANK_ENTRIES and inner:
        entries[inner[0]] = _BLANK_ENTRIES[name]
        return (name, inner[0])
    if name in ("factors", "components") and inner:
        entries.pop(inner[0], None)
    elif name == "search" and inner:
        if inner[0] == "space" and len(inner) > 1:
            entries["space"].pop(inner[1], None)
            entries["space"] |= _BLANK_SEARCH["space"]
        else:
            entries.pop(inner[0], None)
            values[name] = _BLANK_SEARCH | entries
    elif name in _BLANK:
        values[name] = _BLANK[name]
    else:
        values.pop(name, None)
    return (name,)
