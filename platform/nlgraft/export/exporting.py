"""Export of a study's winner: choice, model directory and card."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.errors import DataError
from nlgraft.export.card import write_card
from nlgraft.export.choice import Choice, choose
from nlgraft.export.description import Description
from nlgraft.export.model_directory import Forms, write_directory


@dataclass(frozen=True)
class Export:
    """A model that was written.

    Attributes:
        directory: Where it is.
        choice: The trial that it is of.
        forms: By ``transformers`` and ``ctranslate2``, what is there, or why nothing is.
    """

    directory: Path
    choice: Choice
    forms: Forms

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        described = Description.read(self.directory)
        return {
            "directory": str(self.directory),
            "study": self.choice.result.study.variant,
            "cell": self.choice.cell.cell.label,
            "seed": self.choice.trial.seed,
            "reasons": list(self.choice.reasons),
            "trial": self.choice.trial.fingerprint,
            "task": described.task,
            "columns": list(described.columns),
            "forms": self.forms,
        }


def write_export(result: StudyResult, out: Path, cell: str | None = None, seed: int | None = None) -> Export:
    """Write the model of a study's best cell, or of another one, with its card.

    Args:
        result: The study's results.
        out: A directory that does not exist, or an empty one; it appears whole or not at all.
        cell: A text that names a cell; None for the best by the objective.
        seed: A finished seed; None for that of the median score.

    Raises:
        StudyError: The study has no such cell.
        DataError: Nothing has finished, the trial has no model, or ``out`` is taken.
        StoreError: An artifact is missing or damaged.
    """
    assert result.store is not None, "results that are read have a store"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"--out {out}: is there already and not empty; give another directory")
    choice = choose(result, cell, seed)
    target = out.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as outer:
            partial = Path(outer) / target.name
            partial.mkdir()
            forms = write_directory(choice.graph, result.store, partial)
            described = Description.read(partial)
            write_card(choice, described.task, described.columns, forms, partial)
            partial.replace(target)
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written ({error}); give another directory") from error
    return Export(out, choice, forms)
