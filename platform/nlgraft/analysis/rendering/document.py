"""The result of a study as JSON, as printed by ``run --json`` and ``report --format json``.

Apart from metrics that are times it depends on the scores, the study and its registration only: no
dates but that of the registration, no hosts or durations.
"""

from __future__ import annotations

from typing import Any

from nlgraft.analysis.data.trials import CellResult
from nlgraft.analysis.estimates.comparison import rounded
from nlgraft.analysis.estimates.expected_best import expected_best
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.ledger_tables import ledger_document
from nlgraft.analysis.rendering.registration_tables import registration_document
from nlgraft.analysis.rendering.settings_tables import which_setting
from nlgraft.basics.wording import without_credentials


def result_document(result: RecordedResults) -> dict[str, Any]:
    """Return a result as JSON values.

    Returns:
        ``study`` (the variant's name), ``overrides``, ``fingerprint``, ``baseline``, ``cells`` (each with
        ``cell``, ``state``, ``metrics``, ``comparison``), ``effects`` and ``gains`` on the main metric,
        ``claims``, ``report_dir``, ``tracking_uri``, ``experiment``, ``trials`` and more. Without an
        invocation ``trials`` counts finished ones as reused.
    """
    study, run = result.study, result.invocation
    states = [trial.state for trial in result.trials]
    trials = {"run": 0, "reused": states.count("finished"), "failed": states.count("failed")}
    if run is not None:
        trials = {"run": run.num_run, "reused": run.num_reused, "failed": run.num_failed}
    return {
        "study": study.variant,
        "overrides": study.overrides,
        "fingerprint": study.fingerprint,
        "system": result.system.path,
        "is_constructed": result.is_constructed,
        "main_metric": result.main_metric,
        "baseline": dict(result.baseline.cell.levels),
        "seeds": list(study.seeds),
        "looks": {
            label: {"num_seeds": stop.num_seeds, "stopped_because": stop.reason}
            for label, stop in result.stops.items()
        },
        "ledger": ledger_document(result),
        "registration": registration_document(result),
        "analysis": {**study.analysis.model_dump(mode="json"), "samples": result.samples},
        "which_setting": which_setting(result),
        "trivial": None if result.trivial is None else vars(result.trivial),
        "stability": {stability.label: stability.to_json() for stability in result.stabilities},
        "cells": [_cell(result, cell) for cell in result.cells],
        "effects": _effects(result),
        "gains": _gains(result),
        "claims": [claim.to_json() for claim in result.claims],
        "report_dir": None if run is None else run.report_dir,
        "tracking_uri": without_credentials((run and run.tracking_uri) or study.tracking.uri or "") or None,
        "experiment": (run and run.experiment) or study.tracking.experiment or study.variant,
        "trials": trials,
    }


def _effects(result: RecordedResults) -> list[dict[str, Any]]:
    return [
        {
            "effect": effect.contrast.label,
            "levels": dict(effect.contrast.levels),
            "kind": "interaction" if effect.is_interaction else "main",
            "metric": effect.comparison.metric,
            **effect.comparison.to_json(),
        }
        for effect in result.effects()
    ]


def _gains(result: RecordedResults) -> list[dict[str, Any]]:
    return [
        {"gain": curve.label, "at": level, "metric": comparison.metric, **comparison.to_json()}
        for curve in result.gains()
        for level, comparison in curve.gains
    ]


def _cell(result: RecordedResults, cell: CellResult) -> dict[str, Any]:
    metrics = {name: _metric(cell, name) for name in result.metrics if cell.measured(name)}
    document = {
        "cell": dict(cell.cell.levels),
        "label": cell.cell.label,
        "state": cell.state,
        "reasons": cell.reasons,
        "metrics": metrics,
    }
    if result.study.search is not None:
        expected = expected_best(result, cell)
        document["params"] = dict(cell.params)
        document["search"] = {
            "trials": len(cell.search),
            "distinct": cell.num_distinct,
            "finished": sum(trial.state == "finished" for trial in cell.search),
            "expected_best": None if expected is None else expected.to_json(),
            "settings": next(
                (
                    settings.to_json()
                    for settings in result.searched_settings
                    if settings.label == cell.cell.label
                ),
                None,
            ),
        }
    if cell is not result.baseline:
        compared = {name: result.compare(cell.cell, metric=name) for name in metrics}
        document["comparison"] = {name: comparison.to_json() for name, comparison in compared.items()}
    return document


def _metric(cell: CellResult, name: str) -> dict[str, Any]:
    measured = cell.measured(name)
    return {
        "mean": rounded(cell.mean(name)),
        "std": rounded(cell.std(name)),
        "n": len(measured),
        "values": [rounded(trial.value) for trial in measured.values()],
        "seeds": list(measured),
    }
