"""Study files as text: strict YAML 1.2 (and so JSON) in, YAML out.

Only the core schema's values are read: ``no`` is text, ``1e-4`` a number, ``2:30`` text. Syntax that could
hide a mistake or an attack is refused with its line: duplicate keys, anchors, aliases, merge keys, tags and
tabs.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from nlgraft.basics.errors import ContractError, DataError, Problem
from nlgraft.basics.wording import without_credentials
from nlgraft.pipeline.fingerprint import plain_json
from nlgraft.study.data import paths
from nlgraft.text.files import refuse_special

MAX_INT = 2**63 - 1
"""Largest whole number of a study: Arrow, databases and torch have 64 bits."""
_MAX_DEPTH = 50
_MAX_KEYS = 1000
_INT = re.compile(r"[-+]?[0-9]+")
_BASED_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass
class Document:
    """The content of a study file.

    Attributes:
        values: Plain JSON values.
        lines: Line of each value, counted from 1, by path; 0 for a value set by an override.
        problems: Everything refused.
        is_whole: False when a refusal left a gap, which makes ``values`` meaningless.
    """

    values: Any = None
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    is_whole: bool = True


def read_file(path: Path) -> Document:
    """Read a YAML or JSON file in UTF-8; the document of an unreadable file has that problem."""
    try:
        refuse_special(path)
        return parse(path.read_bytes().decode("utf-8-sig"))
    except DataError as error:
        return Document(problems=[Problem("", str(error))], is_whole=False)
    except OSError as error:
        hint = _file_beside(path) if isinstance(error, FileNotFoundError) else ""
        reason = f"cannot be read: {error.strerror or error}{hint}"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}"
    return Document(problems=[Problem("", f"{path} {reason}")], is_whole=False)


def _file_beside(path: Path) -> str:
    """Suggest a file of the same kind and a similar name in the same directory, or one without its scale."""
    name, _, scale = path.name.partition("@")
    if scale and path.with_name(name).is_file():
        return f". A scale is an argument of its own: {path.with_name(name)} @{scale}"
    kinds = ("*.yaml", f"*{path.suffix}")
    siblings = {}
    for kind in kinds:
        siblings |= {sibling.stem: sibling.name for sibling in sorted(path.parent.glob(kind))}
    near = difflib.get_close_matches(path.stem, siblings, n=1)
    return f". Did you mean '{siblings[near[0]]}'?" if near else ""


def from_values(values: Mapping[str, Any]) -> Document:
    """Make a document of parsed values; tuples become lists, a value that JSON cannot hold is its problem."""
    try:
        return Document(plain_json(values))
    except ContractError as error:
        path, _, message = str(error).partition(": ")
        where = path.removeprefix("value").removeprefix(".")
        return Document(problems=[Problem(where, message)], is_whole=False)


def parse(text: str) -> Document:
    """Parse one YAML 1.2 document; of duplicate keys the first value stays, so that the rest is checked."""
    builder = _Builder(text)
    try:
        builder.build()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # The end of a text is on a line of its own for the parser.
        last_line = text.rstrip("\n").count("\n")
        line = f"line {min(mark.line, last_line) + 1}: " if mark is not None else ""
        reason = " ".join(part for part in (error.context, error.problem) if part)
        is_tab = mark is not None and text[mark.index : mark.index + 1] == "\t"
        hint = "; indent with spaces, tabs are not allowed" if is_tab else ""
        builder.refuse("", f"{line}{reason}{hint}")
    except yaml.YAMLError as error:
        builder.refuse("", " ".join(str(error).split()))
    return builder.document


def resolve_plain(text: str) -> str | int | float | bool | None:
    """Give an unquoted scalar its value by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text) and len(text) <= 4000:
        # Python refuses to convert longer numbers.
        return int(text)
    # YAML 1.2 writes octal numbers as 0o17; 017 is the decimal number 17.
    if _BASED_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def write_yaml(values: Any, *, is_flow: bool = False) -> str:
    """Write JSON values as YAML in their order, as blocks or on one line; `parse` reads them again."""
    return yaml.dump(
        values,
        Dumper=_Dumper,
        default_flow_style=is_flow,
        sort_keys=False,
        allow_unicode=True,
        width=math.inf if is_flow else 110,
    )


def masked(values: Any) -> Any:
    """Copy JSON values with the credentials of URIs masked: ``scheme://user:***@host``."""
    return map_texts(values, lambda _, text: without_credentials(text))


def map_texts(
    values: Any,
    change: Callable[[str, str], str],
    path: str = "",
) -> Any:
    """Copy JSON values with each text, but no key, replaced by ``change(path, text)``."""
    if isinstance(values, dict):
        return {key: map_texts(value, change, paths.join(path, key)) for key, value in values.items()}
    if isinstance(values, list):
        return [map_texts(value, change, paths.join(path, index)) for index, value in enumerate(values)]
    return change(path, values) if isinstance(values, str) else values


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Of YAML 1.1, which other tools read: what either version takes for a number or a constant is quoted.
    is_text = resolve_plain(text) == text and text != "<<"
    is_plain = is_text and text == text.strip() and text.isprintable()
    style = None if is_plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _Builder:
    """Builds a document from parser events: nothing is expanded or silently dropped."""

    def __init__(self, text: str) -> None:
        self.document = Document()
        self._events: Iterator[Event] = yaml.parse(text, Loader=yaml.CSafeLoader)

    def refuse(
        self,
        path: str,
        message: str,
        line: int | None = None,
    ) -> None:
        """Record a problem that leaves a gap in the values."""
        where = "" if line is None else f"line {line}: "
        self.document.problems.append(Problem(path, where + message))
        self.document.is_whole = False

    def build(self) -> None:
        """Consume all events."""
        num_documents = 0
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    self.refuse("", "a second document begins; a study file holds one", _line(event))
                if event.version is not None and tuple(event.version) != (1, 2):
                    self.refuse("", "studies are YAML 1.2; remove the %YAML line", _line(event))
            elif isinstance(event, NodeEvent):
                self.document.values = self._value(event, "", 0)

    def _value(
        self,
        event: Event,
        path: str,
        depth: int,
    ) -> Any:
        self._check_node(event, path)
        if isinstance(event, ScalarEvent):
            return self._scalar(event, path)
        if isinstance(event, AliasEvent):
            return None
        # A document nested deeper would exhaust the recursion of whoever walks it.
        if depth >= _MAX_DEPTH:
            raise yaml.YAMLError(f"line {_line(event)}: nested deeper than {_MAX_DEPTH} levels")
        if isinstance(event, MappingStartEvent):
            return self._mapping(path, depth)
        return self._list(path, depth)

    def _check_node(self, event: Event, path: str) -> None:
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if isinstance(event, AliasEvent):
            self.refuse(path, f"alias *{anchor} is not allowed; write the value out", _line(event))
        elif anchor is not None:
            message = f"anchor &{anchor} is not allowed; write the value out where it is used"
            self.refuse(path, message, _line(event))
        if tag is not None and str(tag):
            message = f"tag {tag} is not allowed; quote the value if it is text"
            self.refuse(path, message, _line(event))

    def _scalar(self, event: ScalarEvent, path: str) -> Any:
        value = _resolved(event)
        if isinstance(value, float) and not math.isfinite(value):
            allowed = f"give at most 1.8e308, or as a whole number {MAX_INT:,}"
            self.refuse(path, f"{value} is not a finite number; {allowed}", _line(event))
        if isinstance(value, str) and ("\0" in value or not _is_unicode(value)):
            self.refuse(path, "holds a character that no text file has", _line(event))
        return value

    def _list(self, path: str, depth: int) -> list[Any]:
        values = []
        while not isinstance(event := next(self._events), CollectionEndEvent):
            where = paths.join(path, len(values))
            self.document.lines.setdefault(where, _line(event))
            values.append(self._value(event, where, depth + 1))
        return values

    def _mapping(self, path: str, depth: int) -> dict[str, Any]:
        values = {}
        key_lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), CollectionEndEvent):
            line = _line(event)
            # Rules compare settings in pairs: a mapping without bound could keep them busy for long.
            if len(key_lines) >= _MAX_KEYS:
                place = path or "the file"
                raise yaml.YAMLError(
                    f"line {line}: more than {_MAX_KEYS:,} keys in {place}; split the mapping"
                )
            if not isinstance(event, ScalarEvent):
                self.refuse(path, "a key must be text", line)
                self._value(event, path, depth + 1)
                self._value(next(self._events), path, depth + 1)
                continue
            self._check_node(event, path)
            key, where = event.value, paths.join(path, event.value)
            if not isinstance(_resolved(event), str):
                self.refuse(where, f'key {key} is not text; quote it: "{key}"', line)
            elif key == "<<" and not event.style:
                self.refuse(where, "merge key << is not allowed; write the values out", line)
            if key in key_lines:
                message = f"key {key!r} is written twice, first on line {key_lines[key]}; keep one"
                self.document.problems.append(Problem(where, f"line {line}: {message}"))
            key_lines.setdefault(key, line)
            self.document.lines.setdefault(where, line)
            value = self._value(next(self._events), where, depth + 1)
            # The first of duplicate keys stays, so that what depends on it is checked as well.
            values.setdefault(key, value)
        return values


def _line(event: Event) -> int:
    return event.start_mark.line + 1


def _resolved(event: ScalarEvent) -> str | int | float | bool | None:
    return event.value if event.style else resolve_plain(event.value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
