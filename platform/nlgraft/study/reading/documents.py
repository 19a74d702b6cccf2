"""Study files as text: strict YAML 1.2 (and so JSON) in, YAML out.

Only the core schema's values are read: ``no`` is text, ``1e-4`` a number, ``2:30`` text. Syntax that could
hide a mistake or an attack is refused with its line: duplicate keys, anchors, aliases, merge keys, tags and
tabs.
"""

from __future__ import annotations

import difflib
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError, YAMLStreamError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from nlgraft.basics.errors import ContractError, DataError, Problem
from nlgraft.basics.wording import without_credentials
from nlgraft.pipeline.fingerprint import plain_json
from nlgraft.study.data import paths
from nlgraft.text.files import refuse_special

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
    """Suggest a file of the same kind and a similar name in the same directory."""
    siblings = {sibling.stem: sibling.name for sibling in sorted(path.parent.glob(f"*{path.suffix}"))}
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
    builder = _Builder()
    try:
        builder.build(YAML(typ="safe", pure=True).parse(io.StringIO(text)))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        reason = " ".join(part for part in (error.context, error.problem) if part)
        hint = "; indent with spaces, tabs are not allowed" if "'\\t'" in reason else ""
        builder.refuse("", f"{line}{reason}{hint}")
    except (YAMLError, YAMLStreamError) as error:
        builder.refuse("", " ".join(str(error).split()))
    return builder.document


def resolve_plain(text: str) -> str | int | float | bool | None:
    """Give an unquoted scalar its value by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text) and len(text) <= 4000:
        # Python refuses to convert longer numbers.
        return int(text)
    if _BASED_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def write_yaml(values: Any) -> str:
    """Write JSON values as block YAML in their order; `parse` reads the same values from it."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.width = 110
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.representer.ignore_aliases = lambda data: True
    yaml.representer.add_representer(str, _represent_text)
    stream = io.StringIO()
    yaml.dump(values, stream)
    return stream.getvalue()


def masked(values: Any) -> Any:
    """Copy JSON values with the credentials of URIs masked: ``scheme://user:***@host``."""
    if isinstance(values, dict):
        return {key: masked(value) for key, value in values.items()}
    if isinstance(values, list):
        return [masked(value) for value in values]
    return without_credentials(values) if isinstance(values, str) else values


def _represent_text(representer: Any, text: str) -> Any:
    # Our rules for numbers differ slightly from ruamel's: quote what either reads as a number.
    is_text = resolve_plain(text) == text and text != "<<"
    is_plain = is_text and text == text.strip() and text.isprintable()
    style = None if is_plain else '"'
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


@dataclass
class _Frame:
    """A mapping or list that is being filled."""

    values: Any
    path: str
    key: str | None = None
    is_key_due: bool = True
    is_skipping: bool = False
    key_lines: dict[str, int] = field(default_factory=dict)


class _Builder:
    """Builds a document from parser events: nothing is expanded, recursed into or silently dropped."""

    def __init__(self) -> None:
        self.document = Document()
        self._frames: list[_Frame] = []
        self._num_documents = 0

    def refuse(self, path: str, message: str) -> None:
        """Record a problem that leaves a gap in the values."""
        self.document.problems.append(Problem(path, message))
        self.document.is_whole = False

    def build(self, events: Iterable[Event]) -> None:
        """Consume all events."""
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, DocumentStartEvent):
                self._start_document(event, line)
            elif isinstance(event, NodeEvent):
                self._check_node(event, line)
                if not self._node(event, line):
                    return
            elif not isinstance(event, (StreamStartEvent, StreamEndEvent, DocumentEndEvent)):
                self._frames.pop()

    def _start_document(self, event: DocumentStartEvent, line: int) -> None:
        self._num_documents += 1
        if self._num_documents > 1:
            self.refuse("", f"line {line}: a second document begins; a study file holds one")
        if event.version is not None and tuple(event.version) != (1, 2):
            self.refuse("", f"line {line}: studies are YAML 1.2; remove the %YAML line")

    def _check_node(self, event: NodeEvent, line: int) -> None:
        where = self._next_path()
        anchor = getattr(event, "anchor", None)
        if isinstance(event, AliasEvent):
            self.refuse(where, f"line {line}: alias *{anchor} is not allowed; write the value out")
        elif anchor is not None:
            self.refuse(
                where, f"line {line}: anchor &{anchor} is not allowed; write the value out where it is used"
            )
        tag = getattr(event, "ctag", None)
        if tag is not None and str(tag):
            self.refuse(where, f"line {line}: tag {tag} is not allowed; quote the value if it is text")

    def _node(self, event: NodeEvent, line: int) -> bool:
        """Add a value or a key; False when reading must stop."""
        if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            # A document nested deeper would exhaust the recursion of whoever walks it.
            if len(self._frames) >= _MAX_DEPTH:
                self.refuse("", f"line {line}: nested deeper than {_MAX_DEPTH} levels")
                return False
            if self._is_key():
                self.refuse(self._frames[-1].path, f"line {line}: a key must be text")
            values: Any = {} if isinstance(event, MappingStartEvent) else []
            path = self._next_path()
            self._take(values, line)
            self._frames.append(_Frame(values, path))
        elif isinstance(event, ScalarEvent):
            is_plain = event.style in (None, "")
            value = resolve_plain(event.value) if is_plain else event.value
            if self._is_key():
                frame = self._frames[-1]
                if len(frame.key_lines) >= _MAX_KEYS:
                    self.refuse(frame.path, f"line {line}: more than {_MAX_KEYS:,} keys; split the mapping")
                    return False
                self._start_key(event.value, value, line)
                if is_plain and event.value == "<<":
                    where = self._next_path()
                    self.refuse(where, f"line {line}: merge key << is not allowed; write the values out")
            else:
                self._take(self._checked(value, line), line)
        else:
            self._take(None, line)
        return True

    def _is_key(self) -> bool:
        if not self._frames:
            return False
        frame = self._frames[-1]
        return isinstance(frame.values, dict) and frame.is_key_due

    def _start_key(self, text: str, value: Any, line: int) -> None:
        frame = self._frames[-1]
        where = paths.join(frame.path, text)
        frame.is_key_due = False
        frame.is_skipping = False
        if not isinstance(value, str):
            self.refuse(where, f'line {line}: key {text} is not text; quote it: "{text}"')
        if text in frame.key_lines:
            first = frame.key_lines[text]
            message = f"line {line}: key {text!r} is written twice, first on line {first}; keep one"
            self.document.problems.append(Problem(where, message))
            frame.is_skipping = True
        else:
            frame.key_lines[text] = line
            self.document.lines.setdefault(where, line)
        frame.key = text

    def _checked(self, value: Any, line: int) -> Any:
        where = self._next_path()
        if isinstance(value, float) and not math.isfinite(value):
            self.refuse(where, f"line {line}: {value} is not a finite number")
        if isinstance(value, str) and ("\0" in value or not _is_unicode(value)):
            self.refuse(where, f"line {line}: holds a character that no text file has")
        return value

    def _next_path(self) -> str:
        if not self._frames:
            return ""
        frame = self._frames[-1]
        if isinstance(frame.values, list):
            return paths.join(frame.path, len(frame.values))
        if frame.key is None or frame.is_key_due:
            return frame.path
        return paths.join(frame.path, frame.key)

    def _take(self, value: Any, line: int) -> None:
        """Put a finished or opened value in its place."""
        if not self._frames:
            self.document.values = value
            return
        frame = self._frames[-1]
        if isinstance(frame.values, list):
            self.document.lines.setdefault(paths.join(frame.path, len(frame.values)), line)
            frame.values.append(value)
            return
        if frame.is_key_due:
            # The key was refused because it is not text; skip the value that follows.
            frame.key = "?"
            frame.is_skipping = True
            frame.is_key_due = False
            return
        if not frame.is_skipping and frame.key is not None:
            frame.values[frame.key] = value
        frame.is_key_due = True


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
