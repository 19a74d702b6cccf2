"""Every shipped study: valid, plannable, at every scale, and every searched path exists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nlgraft.study.data.design import cells, find_cell
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system import load_system

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("search_spaces/*/*.yaml"))
DATA = Path(os.environ.get("NLGRAFT_DATA", ROOT.parent / "shared" / "data"))


def _needs_real_text(path: Path) -> bool:
    return "${env:NLGRAFT_DATA}" in path.read_text()


def _read(path: Path, overrides: list[str]) -> Study:
    return Study.from_yaml(path, overrides=overrides, environ={"NLGRAFT_DATA": str(DATA)})


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
@pytest.mark.parametrize("scale", [None, "tiny", "small", "paper"])
def test_a_shipped_study_validates(path: Path, scale: str | None) -> None:
    study = _read(path, [] if scale is None else [f"@{scale}"])
    assert {"tiny", "small", "paper"} <= set(study.scales), f"{path} lacks a scale"
    system = load_system(study.system)
    for objective in study.objectives:
        assert objective.metric in system.metrics
    for cell in cells(study):
        config = resolve_config(study, cell)
        for target in study.search.space if study.search is not None else ():
            value: object = config
            for part in target.split("."):
                value = getattr(value, part)
    for claim in study.claims:
        assert claim.source
        for name in claim.cells.values():
            find_cell(study, name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_study_plans_at_tiny(path: Path) -> None:
    if _needs_real_text(path) and not DATA.is_dir():
        pytest.skip(f"real text is missing: set NLGRAFT_DATA (looked at {DATA})")
    plan = _read(path, ["@tiny"]).plan(capacity={"CPU": 2.0, "GPU": 0.0})
    document = plan.to_json()
    assert document["problems"] == []
    assert document["trials"] >= document["cells"]
    assert 0 < document["stages"]["distinct"] < document["stages"]["planned"], "nothing is shared"
