"""Two studies or variants side by side: settings, data and results."""

from __future__ import annotations

from collections.abc import Mapping

from nlgraft.basics.errors import NlgraftError
from nlgraft.pipeline.fingerprint import canonical_json, dotted
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs.run import read_result
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell

_LEFT_OUT = ("storage", "tracking", "resources")
"""Fields that change no result."""
Row = tuple[str, str, str]
"""What differs, and its two values; empty where there is none."""


def differences(left: Study, right: Study) -> dict[str, list[Row]]:
    """List what differs between two studies by ``settings``, ``data`` and ``results``.

    ``data`` compares the text itself, too. ``results`` shows the means of all cells that either has; figures
    of two studies are no comparison, which needs both in one.
    """
    sides = left, right
    flat = [_settings(study) for study in sides]
    changed = _changed(flat[0], flat[1])
    data = [row for row in changed if row[0].startswith("data.")]
    texts = [_texts(study) for study in sides]
    return {
        "settings": [row for row in changed if row not in data],
        "data": [*data, *_changed(texts[0], texts[1])],
        "results": _changed(*(_results(study) for study in sides), has_equal=True),
    }


def _changed(left: Mapping[str, str], right: Mapping[str, str], *, has_equal: bool = False) -> list[Row]:
    names = dict.fromkeys([*left, *right])
    return [
        (name, left.get(name, ""), right.get(name, ""))
        for name in names
        if has_equal or left.get(name) != right.get(name)
    ]


def _settings(study: Study) -> dict[str, str]:
    values = {key: value for key, value in study.to_dict().items() if key not in _LEFT_OUT}
    return {
        path: value if isinstance(value, str) else canonical_json(value) for path, value in dotted(values)
    }


def _texts(study: Study) -> dict[str, str]:
    """Digest the text of every corpus that the baseline reads; what cannot be read is said so."""
    try:
        graph: StageGraph = resolve_cell(study, cells(study)[0]).graph(study.seeds[0])
    except NlgraftError as error:
        return {"text": str(error).splitlines()[-1].strip()}
    return {
        f"text of {stage.name}": stage.fingerprint[:12]
        for stage in graph.stages
        if "corpus" in stage.locations  # a fingerprint covers the text's bytes, not only its path
    }


def _results(study: Study) -> dict[str, str]:
    result = read_result(study, ArtifactStore.open(study.storage.path))
    metrics = dict.fromkeys([result.main_metric, *result.study.main_metrics])
    found = {}
    for cell in result.cells:
        for metric in metrics:
            mean, std = cell.mean(metric), cell.std(metric)
            if mean is not None:
                spread = "" if std is None else f" ± {std:.3g}"
                seeds = len(cell.measured(metric))
                found[f"{metric}, {cell.cell.label}"] = f"{mean:.4g}{spread} (n {seeds})"
    return found
