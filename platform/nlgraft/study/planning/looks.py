"""Records of the times that results were seen, and of how many seeds each cell gets after planned looks.

A study that is given more seeds because its result was not significant rejects more often than alpha; the
record of earlier results lets the analysis allow for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Study
from nlgraft.study.reading.resolving import resolve_config

KIND = "looks"
_SEEN = TypeAdapter(dict[str, list[int]])
_GRANTED = TypeAdapter(dict[str, int])
_FEW = 2


def record_look(study: Study, store: ArtifactStore, seeds: Sequence[int]) -> None:
    """Record that results over some seeds were seen without a plan; a single seed decides nothing."""
    if study.sequential is None and len(seeds) >= _FEW:
        seen = store.read_record(KIND, _key(study), _SEEN) or {}
        store.write_record(KIND, _key(study), seen | {fingerprint(sorted(seeds)): sorted(seeds)})


def earlier_looks(study: Study, store: ArtifactStore) -> tuple[int, ...]:
    """Return the numbers of seeds at which results were seen that a study has extended since."""
    seen = store.read_record(KIND, _key(study), _SEEN) or {}
    return tuple(sorted(len(seeds) for seeds in seen.values() if set(seeds) < set(study.seeds)))


def record_granted(study: Study, store: ArtifactStore, granted: Mapping[str, int]) -> None:
    """Record how many seeds each cell gets, by the cells' keys."""
    store.write_record(KIND, f"{_key(study)}/granted", dict(granted))


def read_granted(study: Study, store: ArtifactStore) -> dict[str, int]:
    """Read how many seeds the cells got at the last look; empty before the first."""
    if study.sequential is None:
        return {}
    return store.read_record(KIND, f"{_key(study)}/granted", _GRANTED) or {}


def _key(study: Study) -> str:
    """Fingerprint of what determines the trials of the baseline, but their seeds."""
    config = resolve_config(study, cells(study)[0], has_absolute_paths=False)
    return fingerprint({"system": study.system, "config": config.model_dump(mode="json")})
