"""From a document to a study, or to all of its problems."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, TypeAdapter

from nlgraft.basics.errors import Problem, StudyError, nearest
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data import paths
from nlgraft.study.data.study import SCHEMA_VERSION, Overrides, Study
from nlgraft.study.reading import documents, overrides
from nlgraft.study.reading.documents import Document
from nlgraft.study.reading.draft import StudyT, describe, read_draft
from nlgraft.study.reading.idle_rules import idle_problems, shadow_problems
from nlgraft.study.reading.rules import (
    claim_problems,
    seed_problems,
    study_problems,
    system_problems,
    usable_cells,
    value_problems,
)
from nlgraft.text.files import looking_below

# The record of a study in its store, by which status and report find it by name.


_KIND = "definitions"
INPUTS = "inputs"
"""Folder of an unpacked store with the input files of its studies, by the places that they came from."""

_REMOVED = {
    "resources": {"priority", "stall_timeout", "use_idle_cpus"},
    "sequential": {"replicates"},
    "analysis": {"test", "correction"},
}
"""Settings that records of earlier versions hold; none of them changed what trials compute."""


@dataclass(frozen=True)
class _Definition:
    """A study as it was run.

    Attributes:
        name: The variant's name.
        scales: Names of its scales.
        overrides: Its other overrides by path.
        directory: Start of relative paths.
        study: Its values, scales and overrides put in, credentials masked.
    """

    name: str
    scales: tuple[str, ...]
    overrides: dict[str, JsonValue]
    directory: str
    study: dict[str, JsonValue]


_DEFINITION = TypeAdapter(_Definition)


def record_study(study: Study, store: ArtifactStore) -> None:
    """Record a study under its variant's name; the newest one of a name is kept."""
    applied = study._overrides
    definition = _Definition(
        name=study.variant,
        scales=applied.scales,
        overrides=documents.masked(dict(applied.values)),
        directory=study.directory or str(Path.cwd()),
        study=documents.masked(study.to_dict()),
    )
    store.records.write(_KIND, fingerprint(study.variant), _DEFINITION.dump_python(definition, mode="json"))


def recorded_names(store: ArtifactStore) -> list[str]:
    """List the names under which studies were run on a store, sorted."""
    return sorted(definition.name for definition in store.records.list(_KIND, _DEFINITION).values())


def forget_study(name: str, store: ArtifactStore) -> None:
    """Remove the record of a study; what it computed stays."""
    store.remove(f"records/{_KIND}/{fingerprint(name)}.json")


def recorded_study(
    name: str,
    store: ArtifactStore,
    kind: type[StudyT],
) -> StudyT:
    """Read the study that was run under a variant's name.

    Args:
        name: E.g. ``demo`` or ``demo@tiny-1f0c6a2e``.
        kind: The class of the study.

    Raises:
        StudyError: The store has no such study, or this version of nlgraft refuses it.
    """
    definition = store.records.read(_KIND, fingerprint(name), _DEFINITION)
    if definition is None:
        names = recorded_names(store)
        hint = nearest(name, names) if names else "No study was run there"
        other = "For another store: --storage; in Python nlgraft.load(name, storage=...)"
        message = f"is neither a file nor a study of the store {store.uri}. {hint}. {other}"
        raise StudyError([Problem("", f"{name!r} {message}")], name)
    # A store that was moved or copied still knows its studies.
    values = {**definition.study, "storage": {"path": store.uri}}
    for field, removed in _REMOVED.items():
        if isinstance(settings := values.get(field), dict):
            values[field] = {key: settings[key] for key in settings.keys() - removed}
    # A run records values. The environment of who reads the store of somebody else is none of its business.
    if "${env:" in json.dumps({key: value for key, value in values.items() if key != "scales"}):
        raise StudyError(
            [Problem("", "its record names a variable, which no run writes; run its file")], name
        )
    directory = Path(definition.directory)
    mirror = Path(store.uri) / INPUTS if store.is_local else None
    with looking_below(mirror):
        study = read_study(documents.from_values(values), (), {}, name, kind, directory)
    study._mirror = mirror
    study._overrides = Overrides(definition.scales, definition.overrides)
    return study


_OF_CELLS = ("system", "data", "base", "factors", "components", "design", "exclude", "search", "seeds")
"""Fields that determine the trials of a cell."""


def read_study(
    document: Document,
    changes: Iterable[str],
    environ: Mapping[str, str],
    source: str,
    kind: type[StudyT],
    directory: Path,
) -> StudyT:
    """Check a document and build the study.

    Args:
        document: The study file.
        changes: ``@scale`` and ``key=value``.
        environ: Values of ``${env:NAME}``.
        source: Name of the study in the error.
        kind: The class of the study.
        directory: Start of relative paths in the study.

    Raises:
        StudyError: Lists all problems in file order.
    """
    if document.is_whole and (reason := _unusable(document.values)) is not None:
        document.problems.append(reason)
        document.is_whole = False
    if not document.is_whole:
        raise StudyError(_in_file_order(document), source)
    applied = overrides.apply(document, changes, environ)
    # From here on problems are collected, not raised: the user sees all of them at once.
    draft = read_draft(document.values, document.problems, kind)
    study = draft.study
    study._directory, study._overrides = str(directory.absolute()), applied
    document.problems += value_problems(document.values)
    document.problems += seed_problems(document.values.get("seeds"))
    cells = usable_cells(draft)
    document.problems += study_problems(draft)
    document.problems += claim_problems(draft, cells)
    document.problems += system_problems(draft, cells)
    document.problems += shadow_problems(draft, cells, applied)
    # Building stage graphs takes the longest, and needs cells in which nothing else is wrong.
    if not any(problem.path.startswith(_OF_CELLS) for problem in document.problems):
        document.problems += idle_problems(study)
    if document.problems:
        raise StudyError(_in_file_order(document), source)
    return study


def _unusable(values: Any) -> Problem | None:
    """The problem that makes further reading pointless."""
    if not isinstance(values, dict):
        return Problem("", f"a study is a mapping that begins with its name, got {describe(values)}")
    version = values.get("schema_version")
    if isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION:
        message = f"{version} is newer than this nlgraft, which reads up to {SCHEMA_VERSION}; upgrade nlgraft"
        return Problem("schema_version", message)
    return None


def _in_file_order(document: Document) -> list[Problem]:
    """Sort by line, drop repetitions, and add the line where the message lacks it."""
    placed: dict[Problem, tuple[int, Problem]] = {}
    for problem in document.problems:
        # A value that an override added has no line; its nearest ancestor in the file has.
        ancestors = [path for path in paths.ancestors(problem.path) if path in document.lines]
        line = document.lines[ancestors[0]] if ancestors else 0
        message = problem.message
        if line and not message.startswith("line "):
            message = f"{message} (line {line})"
        placed.setdefault(problem, (line, Problem(problem.path, message)))
    by_line = sorted(placed.values(), key=lambda entry: entry[0])
    return [problem for _, problem in by_line]
