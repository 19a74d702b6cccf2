"""Records of how many seeds each cell gets after planned looks."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter

from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import study_key
from nlgraft.study.reading.resolving import resolve_cell, resolve_config

KIND = "looks"
_ANY_SEED = 0
_GRANTED = TypeAdapter(dict[str, int])


def cell_key(study: Study, cell: Cell, params: Mapping[str, object]) -> str:
    """Fingerprint of everything that determines the replicates of a cell, except their seeds."""
    config = resolve_config(study, cell, params, has_absolute_paths=False)
    return fingerprint({"system": study.system, "config": config.model_dump(mode="json")})


def cell_digest(study: Study, cell: Cell) -> str:
    """Fingerprint of the replicates of a cell but for their seeds: settings, text, and versions of stages."""
    return resolve_cell(study, cell).graph(_ANY_SEED).fingerprint


def record_granted(study: Study, store: ArtifactStore, granted: Mapping[str, int]) -> None:
    """Record how many seeds each cell gets, by the cells' keys."""
    store.write_record(KIND, f"{study_key(study)}/granted", dict(granted))


def read_granted(study: Study, store: ArtifactStore) -> dict[str, int]:
    """Read how many seeds the cells got at the last look; empty before the first."""
    # Version 0.1.0 wrote under the first cell's key, which studies with one baseline share.
    for key in (study_key(study), cell_key(study, cells(study)[0], {})):
        granted = store.read_record(KIND, f"{key}/granted", _GRANTED)
        if granted is not None:
            return granted
    return {}
