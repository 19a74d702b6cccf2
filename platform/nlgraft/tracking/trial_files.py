"""Files of a trial that are logged to MLflow, and the artifact of its model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from nlgraft.basics.errors import NlgraftError

if TYPE_CHECKING:
    from nlgraft.pipeline.stage import StageGraph
    from nlgraft.pipeline.store import ArtifactStore

_log = logging.getLogger("nlgraft.tracking")

SCORED = "metrics.json"
"""File of an artifact that holds scores; its other texts are logged beside it."""

PREDICTOR = "predictor.json"
"""File of an artifact that holds a model that can be served."""

MAX_FILE_BYTES = 64 * 2**20


def copy_scored_files(graph: StageGraph, store: ArtifactStore, target: Path) -> None:
    """Copy hypotheses, references, scores and segment statistics of a trial.

    Args:
        target: Directory for the files: those of the last stage directly, others below their stage's name.
    """
    for stage in graph.stages:
        try:
            manifest = store.manifest(stage)
            if manifest is None or SCORED not in manifest.files:
                continue
            folder = target if stage is graph.result else target / stage.name
            for name, entry in manifest.files.items():
                is_logged = Path(name).suffix in (".txt", ".json") or name.startswith("segments-")
                if not is_logged or entry.bytes > MAX_FILE_BYTES:
                    continue
                content = store.read_file(stage, name)
                if content is not None:
                    path = folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
        except NlgraftError as error:
            _log.warning("files of stage %s cannot be logged to MLflow: %s", stage.name, error)


def find_model(graph: StageGraph, store: ArtifactStore) -> Path | None:
    """Fetch the artifact of the last stage of a trial that has a ``predictor.json``; None if no stage has."""
    for stage in reversed(graph.stages):
        manifest = store.manifest(stage)
        if manifest is not None and PREDICTOR in manifest.files:
            return store.fetch(stage)
    return None
