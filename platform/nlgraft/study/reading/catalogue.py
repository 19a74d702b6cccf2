"""The catalogue: systems, their settings and metrics, and the studies that come with nlgraft."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nlgraft.basics.errors import DataError, did_you_mean
from nlgraft.basics.shipped import SYSTEMS_PACKAGE, studies, system_names
from nlgraft.study.data import paths
from nlgraft.study.data.system import System
from nlgraft.study.reading.documents import read_file
from nlgraft.study.reading.knobs import Knob, knobs
from nlgraft.study.reading.system_import import load_system

_USUAL = 0.5
"""Share of a system's studies that must set a setting for it to be essential."""


def find_system(name: str) -> System:
    """Load a system by import path, or by name if it comes with nlgraft."""
    shipped = f"{SYSTEMS_PACKAGE}.{name}"
    return load_system(shipped if shipped in system_names() else name)


def shipped_systems() -> list[dict[str, str]]:
    """Describe the systems that come with nlgraft as JSON."""
    systems = [load_system(name) for name in system_names()]
    return [
        {"name": system.name, "description": system.description, "paper": system.paper} for system in systems
    ]


def settings_of(
    system: System,
    prefix: str = "",
    *,
    is_essential: bool = False,
) -> list[dict[str, Any]]:
    """Describe settings of a system as JSON, one for each kind of corpus where these differ.

    ``kinds`` are the kinds of corpus that have a setting, if not all do. ``read_when`` lists conditions; a
    setting has an effect if one of them holds, or if there are none.

    Args:
        prefix: Only this setting, or those of this part; empty for all.
        is_essential: Only those that half of the studies which come with nlgraft set.

    Raises:
        DataError: No setting has this prefix.
    """
    all_knobs = knobs(system.config_type, is_by_kind=True)
    chosen = [knob for knob in all_knobs if not prefix or f"{knob.path}.".startswith(f"{prefix}.")]
    if not chosen:
        valid_paths = dict.fromkeys(path for knob in all_knobs for path in paths.ancestors(knob.path))
        top_level = dict.fromkeys(knob.path.partition(".")[0] for knob in all_knobs)
        parts = f"Its parts: {', '.join(top_level)}"
        near = did_you_mean(prefix, [*valid_paths])
        hint = " ".join(filter(None, (near, parts)))
        raise DataError(f"{system.name} has no setting {prefix!r}. {hint}")
    usual = _usual_paths(system)
    return [
        {**knob.to_json(), "read_when": system.conditions(knob.path), "is_essential": is_usual}
        for knob in chosen
        if (is_usual := _is_set(knob, usual)) or not is_essential
    ]


def metrics_of(system: System) -> list[dict[str, Any]]:
    """Describe the metrics of a system as JSON."""
    return [
        {
            "metric": name,
            "direction": metric.direction,
            "unit": metric.unit,
            "split": metric.split,
            "description": " ".join(metric.description.split()),
        }
        for name, metric in system.metrics.items()
    ]


def shipped_studies() -> list[dict[str, Any]]:
    """Describe the studies that come with nlgraft as JSON: name, system, question, scales, needs."""
    return [
        {
            "study": name,
            "system": values["system"],
            "description": " ".join(values.get("description", "").split()),
            "scales": [*values.get("scales", {})],
            "needs_data": "${env:" in str(values["data"]),
        }
        for name, values in _documents()
    ]


def _documents(system: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, path in studies().items():
        if not system or name.startswith(f"{system}/"):
            yield name, read_file(path).values


def _usual_paths(system: System) -> set[str]:
    """The paths that at least half of the shipped studies set, in base, data, factors or search."""
    counts: Counter[str] = Counter()
    shipped = [values for _, values in _documents(system.name)]
    for values in shipped:
        counts.update({path for part in _parts(values) for path, _ in paths.leaves(part)})
    # A path that no study sets is never usual, also of a system without studies.
    least = max(1, _USUAL * len(shipped))
    return {path for path, number in counts.items() if number >= least}


def _parts(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"data": values.get("data", {})}
    yield values.get("base", {})
    for factor in values.get("factors", {}).values():
        if "target" in factor:
            yield {factor["target"]: None}
        else:
            yield from factor["levels"].values()
    for component in values.get("components", {}).values():
        yield component["without"]
    # Searched paths count as set: their domain stands in the file.
    yield dict.fromkeys((values.get("search") or {}).get("space", {}))


def _is_set(knob: Knob, usual: set[str]) -> bool:
    """Return True if usual paths set a knob; items of a list count as the list, ``<key>`` is any key."""
    pattern = re.escape(knob.path.partition("[]")[0]).replace("<key>", "[^.]+")
    return any(re.fullmatch(pattern, path) for path in usual)
