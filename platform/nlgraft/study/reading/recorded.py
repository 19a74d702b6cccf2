"""The record of a study in its store, by which status and report find it by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue, TypeAdapter

from nlgraft.basics.errors import Problem, StudyError, nearest
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.study import Overrides, Study
from nlgraft.study.reading import documents
from nlgraft.study.reading.reader import read_study
from nlgraft.text.files import looking_below

_KIND = "definitions"
INPUTS = "inputs"
"""Folder of an unpacked store with the input files of its studies, by the places that they came from."""

_REMOVED_RESOURCES = {"priority", "use_idle_cpus"}
"""Settings that records of earlier versions hold, with their defaults; none decided what trials compute."""

StudyT = TypeVar("StudyT", bound=Study)


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
    store.write_record(_KIND, fingerprint(study.variant), _DEFINITION.dump_python(definition, mode="json"))


def recorded_names(store: ArtifactStore) -> list[str]:
    """List the names under which studies were run on a store, sorted."""
    return sorted(known.name for known in store.list_records(_KIND, _DEFINITION).values())


def forget_study(name: str, store: ArtifactStore) -> None:
    """Remove the record of a study; what it computed stays."""
    store.remove(f"records/{_KIND}/{fingerprint(name)}.json")


def recorded_study(name: str, store: ArtifactStore, kind: type[StudyT]) -> StudyT:
    """Read the study that was run under a variant's name.

    Args:
        name: E.g. ``demo`` or ``demo@tiny-1f0c6a2e``.
        kind: The class of the study.

    Raises:
        StudyError: The store has no such study, or this version of nlgraft refuses it.
    """
    found = store.read_record(_KIND, fingerprint(name), _DEFINITION)
    if found is None:
        names = recorded_names(store)
        there = nearest(name, names) if names else "No study was run there"
        message = f"is neither a file nor a study of the store {store.uri}. {there}. For another: --storage"
        raise StudyError([Problem("", f"{name!r} {message}")], name)
    values = {**found.study, "storage": {"path": store.uri}}
    if isinstance(resources := values.get("resources"), dict):
        values["resources"] = {key: resources[key] for key in resources.keys() - _REMOVED_RESOURCES}
    # A run records values. The environment of who reads the store of somebody else is none of its business.
    if "${env:" in json.dumps({key: value for key, value in values.items() if key != "scales"}):
        raise StudyError(
            [Problem("", "its record names a variable, which no run writes; run its file")], name
        )
    directory = Path(found.directory)
    mirror = Path(store.uri) / INPUTS if store.is_local else None
    with looking_below(mirror):
        study = read_study(documents.from_values(values), (), {}, name, kind, directory)
    study._mirror = mirror
    study._overrides = Overrides(found.scales, found.overrides)
    return study
