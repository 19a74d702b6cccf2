"""A study that may be wrong: parts that cannot be read are replaced, so that one mistake hides no other."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from nlgraft.basics.errors import Problem
from nlgraft.study.data.study import Column, Statement, Study
from nlgraft.study.reading.faults import Fault, Parts, faults_of, take_out

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
        return [*self._entries("published", self.study.published)]

    @property
    def claims(self) -> list[tuple[str, Statement]]:
        """Readable claims with their paths."""
        return [*self._entries("claims", self.study.claims)]

    def _entries(self, name: str, entries: Iterable[Any]) -> Iterator[tuple[str, Any]]:
        for index, entry in enumerate(entries):
            if (name, index) not in self.blank:
                yield f"{name}[{index}]", entry


def read_draft(values: Mapping[str, Any], problems: list[Problem], kind: type[StudyT]) -> Draft[StudyT]:
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
    if ("search",) in replaced and study.search is not None:
        space = {path: domain for path, domain in study.search.space.items() if path != "blank"}
        study = study.model_copy(update={"search": study.search.model_copy(update={"space": space})})
    return Draft(study, {str(parts[0]) for parts in replaced}, replaced)


def _misspelt(faults: list[Fault]) -> dict[Parts, str]:
    """Find the required keys that unknown ones beside them nearly spell, by the place of the unknown one."""
    missing = [fault.parts for fault in faults if fault.is_missing]
    meant: dict[Parts, str] = {}
    for fault in faults:
        siblings = [str(parts[-1]) for parts in missing if parts[:-1] == fault.parts[:-1]]
        if fault.is_unknown_key and (near := difflib.get_close_matches(str(fault.parts[-1]), siblings, n=1)):
            meant[fault.parts] = near[0]
    return meant


def _replace(values: dict[str, Any], parts: Parts) -> Parts:
    """Replace the smallest part around a refused value; return its place."""
    name, *inner = parts
    entries = values.get(name)
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
            values[name] = {key: value for key, value in entries.items() if key != inner[0]}
            values[name] = _BLANK_SEARCH | values[name]
    elif name in _BLANK:
        values[name] = _BLANK[name]
    else:
        values.pop(name, None)
    return (name,)
