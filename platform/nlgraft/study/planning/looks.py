"""Records of when results were seen, and of how many seeds each cell gets after planned looks.

A study that is given more seeds because its result was not significant rejects more often than alpha; the
record of earlier results lets the analysis allow for that. A look belongs to the cells that it showed side by
side, each known by its config without the seed: a study that compares the same cells again has seen them,
and one that shares only its baseline with them has not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, TypeAdapter

from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell, cells
from nlgraft.study.data.study import Study
from nlgraft.study.reading.resolving import resolve_config

KIND = "looks"
_GRANTED = TypeAdapter(dict[str, int])
_FEW = 2


class Look(BaseModel):
    """What one look at results showed of one cell.

    Attributes:
        seeds: Seeds that had finished.
        metrics: Metrics that they had.
    """

    seeds: list[int]
    metrics: list[str]


Looks = Mapping[str, Look]
"""Looks at one cell by their names, which sort by time; a look at several cells has one name in all."""
_LOOK = TypeAdapter(Look)


def cell_key(study: Study, cell: Cell, params: Mapping[str, object]) -> str:
    """Fingerprint of everything that determines the replicates of a cell, except their seeds."""
    config = resolve_config(study, cell, params, has_absolute_paths=False)
    return fingerprint({"system": study.system, "config": config.model_dump(mode="json")})


def record_look(study: Study, store: ArtifactStore, seen: Mapping[str, Look]) -> None:
    """Record that results were seen without a plan; a single seed decides nothing.

    Args:
        seen: Finished seeds and their metrics, by the cell's key.
    """
    shown = {key: look for key, look in seen.items() if len(look.seeds) >= _FEW}
    # The same results shown again, as by a second report, tell nothing new.
    if study.sequential is not None or _last(store, shown) == shown:
        return
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
    for key, look in shown.items():
        store.write_record(KIND, f"{key}/seen/{name}", look.model_dump())


def read_looks(store: ArtifactStore, key: str) -> Looks:
    """Read the looks at a cell, whatever study took them."""
    found = store.list_records(KIND, _LOOK, f"{key}/seen/")
    return {path.rpartition("/")[2]: look for path, look in found.items()}


def earlier_looks(looks: Sequence[Looks], metrics: Sequence[str], seeds: Sequence[int]) -> tuple[int, ...]:
    """List the numbers of seeds at which a comparison was seen before it was extended to these seeds.

    Seeds seen together with, or after, a larger set that contains them do not count as a look of their own.

    Args:
        looks: The looks at each cell of the comparison.
        metrics: The metric of each cell.
        seeds: The seeds of the comparison now.

    Returns:
        Ascending numbers.
    """
    found: list[set[int]] = []
    # Names sort by time; looks at several cells share one, so these are the looks that showed all of them.
    for name in sorted(set.intersection(*(set(one) for one in looks))):
        shown = [one[name] for one in looks]
        together = set.intersection(*(set(look.seeds) for look in shown))
        if len(together) < _FEW or any(
            metric not in look.metrics for metric, look in zip(metrics, shown, strict=True)
        ):
            continue
        if together >= set(seeds):
            break
        if not any(together <= before for before in found):
            found.append(together)
    return tuple(sorted(len(one) for one in found if one < set(seeds)))


def _last(store: ArtifactStore, shown: Mapping[str, Look]) -> dict[str, Look]:
    """Return the latest look at each cell, if it was one and the same."""
    found = {key: read_looks(store, key) for key in shown}
    names = {max(looks, default="") for looks in found.values()}
    name = names.pop() if len(names) == 1 else ""
    return {key: looks[name] for key, looks in found.items() if name in looks}


def record_granted(study: Study, store: ArtifactStore, granted: Mapping[str, int]) -> None:
    """Record how many seeds each cell gets, by the cells' keys."""
    store.write_record(KIND, f"{_key(study)}/granted", dict(granted))


def read_granted(study: Study, store: ArtifactStore) -> dict[str, int]:
    """Read how many seeds the cells got at the last look; empty before the first."""
    if study.planned_looks is None:
        return {}
    return store.read_record(KIND, f"{_key(study)}/granted", _GRANTED) or {}


def _key(study: Study) -> str:
    return cell_key(study, cells(study)[0], {})
