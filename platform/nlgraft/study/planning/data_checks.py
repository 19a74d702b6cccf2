"""Checks of a study's data before anything runs: each stage names the function that looks at its own."""

from __future__ import annotations

from collections.abc import Iterable

from nlgraft.basics.errors import DataError
from nlgraft.pipeline.execute import load_function
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell
from nlgraft.study.data.findings import Findings
from nlgraft.study.data.study import Study
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.text.files import looking_below


def check_cells(study: Study, cells: Iterable[Cell], store: ArtifactStore | None = None) -> Findings:
    """Check the data of some cells; see `check_data`."""
    with looking_below(study.mirror):
        return check_data((resolve_cell(study, cell).graph(study.seeds[0]) for cell in cells), store)


def check_data(graphs: Iterable[StageGraph], store: ArtifactStore | None = None) -> Findings:
    """Call the checks that the stages of some graphs name.

    A check is called once, with all stages that name it, inputs first, and with the `Findings` so far, to
    which it adds. Checks are called in the order in which the stages first name them.

    Args:
        graphs: Stage graphs.
        store: What it holds has been checked; None checks everything.

    Raises:
        ContractError: A stage names a check that does not exist.
        DataError: A corpus or a released checkpoint cannot be used; lists the problems of all.
    """
    stages = {stage.fingerprint: stage for graph in graphs for stage in graph.stages}
    done = store.finished(stages) if store is not None else set()
    asked: dict[str, list[Stage]] = {}
    for key, stage in stages.items():
        if stage.check is not None and key not in done:
            asked.setdefault(stage.check, []).append(stage)
    findings = Findings([*stages.values()])
    for path, named_by in asked.items():
        load_function(named_by[0], path)(named_by, findings)
    if findings.problems:
        raise DataError("\n".join(dict.fromkeys(findings.problems)))
    findings.warnings = list(dict.fromkeys(findings.warnings))
    return findings
