"""The readable parts of a study that may be wrong, each read alone: one mistake hides no other."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from nlgraft.basics.errors import Problem
from nlgraft.study.data.space import Domain
from nlgraft.study.data.study import Column, Objective, Search, Statement, Study
from nlgraft.study.reading.faults import Fault, faults_of

_BLANK: dict[str, Any] = {
    "name": "blank",
    "system": "blank",
    "objective": {"metric": "blank", "direction": "maximize"},
    "seeds": [0],
}
"""A valid study around the part to be read."""

_BLANK_SPACE = {"blank": {"type": "float", "low": 0, "high": 1}}
_IN_PIECES = {
    "factors": dict,
    "components": dict,
    "search": dict,
    "objective": (dict, list),
    "published": list,
    "claims": list,
}
_REPAIRS = 3


@dataclass
class Draft:
    """The readable parts of a study.

    Attributes:
        study: A study of all parts that could be read, blank or without entries where they could not.
        unreadable: Top-level fields of which some part could not be read.
        objectives: Readable objectives with their paths.
        published: Readable columns of published figures with their paths.
        claims: Readable claims with their paths.
    """

    study: Study
    unreadable: set[str]
    objectives: list[tuple[str, Objective]] = field(default_factory=list)
    published: list[tuple[str, Column]] = field(default_factory=list)
    claims: list[tuple[str, Statement]] = field(default_factory=list)

    def can_use(self, *names: str) -> bool:
        """Return True when these fields were read completely."""
        return self.unreadable.isdisjoint(names)


def read_draft(values: Mapping[str, Any], problems: list[Problem]) -> Draft:
    """Read the values of a study file part by part.

    Args:
        values: The values.
        problems: Receives the problems of single parts.
    """
    reader = _Reader(problems)
    parts: dict[str, Any] = {}
    for name, value in values.items():
        # Of the others each entry is read alone, so that a wrong one leaves its neighbours readable.
        if not isinstance(value, _IN_PIECES.get(name, ())):
            part = reader.read({name: value}, (name,))
            if part is not None and name in Study.model_fields:
                parts[name] = getattr(part, name)
    unknown = [name for name in values if name not in Study.model_fields]
    for name in _BLANK:
        if name not in values:
            reader.unreadable.add(name)
            if not difflib.get_close_matches(name, unknown, n=1):
                problems.append(Problem(name, "is missing; it must be given"))
    draft = Draft(Study.model_validate(_BLANK), reader.unreadable)
    for name, collected in _read_entries(values, reader).items():
        parts[name] = collected
    for path, part in _read_list(values, "published", reader):
        draft.published.append((path, part.published[0]))
    for path, part in _read_list(values, "claims", reader):
        draft.claims.append((path, part.claims[0]))
    for path, part in _read_list(values, "objective", reader):
        draft.objectives.append((path, part.objectives[0]))
    if isinstance(values.get("search"), dict):
        parts["search"] = _read_search(values["search"], reader)
    draft.study = draft.study.model_copy(update=parts)
    return draft


def _read_entries(values: Mapping[str, Any], reader: _Reader) -> dict[str, dict[str, Any]]:
    collected: dict[str, dict[str, Any]] = {}
    for name in ("factors", "components"):
        if isinstance(values.get(name), dict):
            collected[name] = {}
            for key, value in values[name].items():
                part = reader.read({name: {key: value}}, (name, key))
                collected[name] |= getattr(part, name) if part else {}
    return collected


def _read_list(values: Mapping[str, Any], name: str, reader: _Reader) -> Iterator[tuple[str, Study]]:
    value = values.get(name)
    if isinstance(value, list):
        for index, entry in enumerate(value):
            part = reader.read({name: [entry]}, (name, index))
            if part is not None:
                yield f"{name}[{index}]", part
    if name == "objective" and (isinstance(value, dict) or value == []):
        part = reader.read({name: value}, (name,))
        if part is not None:
            yield name, part


def _read_search(values: Mapping[str, Any], reader: _Reader) -> Search:
    domains = values.get("space")
    space: dict[str, Domain] = {}
    for path, value in domains.items() if isinstance(domains, dict) else ():
        fragment = {"search": {"trials": 1, "space": {path: value}}}
        part = reader.read(fragment, ("search", "space", path))
        if part is not None and part.search is not None:
            space |= part.search.space
    settings = dict(values)
    if isinstance(domains, dict) and domains:
        settings["space"] = _BLANK_SPACE
    part = reader.read({"search": settings}, ("search",))
    search = part.search if part is not None else None
    if search is None:
        search = Search.model_validate({"trials": 1, "space": _BLANK_SPACE})
    return search.model_copy(update={"space": space})


class _Reader:
    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.unreadable: set[str] = set()

    def read(self, fragment: dict[str, Any], where: tuple[str | int, ...]) -> Study | None:
        """Read one part inside a blank study; None when it cannot be read even without its unknown keys."""
        values = _BLANK | copy.deepcopy(fragment)
        for _ in range(_REPAIRS):
            try:
                return Study.model_validate(values)
            except ValidationError as error:
                faults = faults_of(error, Study, values)
            misspelt = _misspelt(faults)
            for fault in faults:
                if fault.parts not in misspelt.values():
                    self.problems.append(Problem(_shifted(fault, where).path, fault.message))
            unknown = [fault for fault in faults if fault.is_unknown_key]
            # Only unknown keys can be repaired: without them the next round sees what they hide.
            for fault in unknown:
                _repair(values, fault, misspelt.get(fault.parts))
            if len(unknown) + len(misspelt) < len(faults):
                break
        self.unreadable.add(str(where[0]))
        return None


def _misspelt(faults: list[Fault]) -> dict[tuple[str | int, ...], tuple[str | int, ...]]:
    """Pair unknown keys with the required keys beside them that they nearly spell."""
    missing = [fault.parts for fault in faults if fault.is_missing]
    pairs: dict[tuple[str | int, ...], tuple[str | int, ...]] = {}
    for fault in faults:
        if not fault.is_unknown_key:
            continue
        *parent, key = fault.parts
        siblings = {str(parts[-1]): parts for parts in missing if [*parts[:-1]] == parent}
        nearest_keys = difflib.get_close_matches(str(key), siblings, n=1, cutoff=0.6)
        if nearest_keys:
            pairs[fault.parts] = siblings[nearest_keys[0]]
    return pairs


def _repair(values: dict[str, Any], fault: Fault, required: tuple[str | int, ...] | None) -> None:
    node: Any = values
    for part in fault.parts[:-1]:
        node = node[part]
    if isinstance(node, dict):
        value = node.pop(fault.parts[-1], None)
        if required is not None:
            node[required[-1]] = value


def _shifted(fault: Fault, where: tuple[str | int, ...]) -> Fault:
    """Restore the index of a list's entry, which was read as the only one."""
    parts = list(fault.parts)
    for position, part in enumerate(where):
        if isinstance(part, int) and position < len(parts) and isinstance(parts[position], int):
            parts[position] = part
    return Fault(tuple(parts), fault.message)
