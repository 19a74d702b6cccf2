"""Cost of verdicts: reading a finished study and writing its report in all formats, as it grows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.evaluation.artifact import write_evaluation
from nlgraft.evaluation.scores import evaluate_text
from nlgraft.pipeline.stage import NullReporter, Stage, StageContext, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.study.data.design import cells
from nlgraft.study.data.system import Metric
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell

DESCRIPTION = "A trial whose scores are drawn"
PAPER = "none"
METRICS = {
    "dev/bleu": Metric(direction="maximize", unit="BLEU points", split="dev"),
    "test/bleu": Metric(direction="maximize", unit="BLEU points", split="test"),
}
CELLS = (10, 100, 400)
NUM_SEEDS = 10
TEXT = {"cells": 20, "seeds": 5, "segments": 3_000}
FORMATS = ("md", "html", "latex", "csv", "json")
_NUM_WORDS = 12


class Config(StrictConfig):
    """An arm, and the number of segments; none for a score without segments."""

    arm: int = 0
    segments: int = 0
    data: Mapping[str, Any] = {}


def stage_graph(config: Config, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
    """One stage."""
    settings = {"arm": config.arm, "segments": config.segments, "splits": list(splits)}
    return StageGraph(Stage(name="draw", run=f"{__name__}:draw", config=settings, seed=seed))


def draw(context: StageContext) -> None:
    """Write a score, or the text that has one."""
    arm, num = context.config["arm"], context.config["segments"]
    rng = np.random.default_rng([arm, context.stage.seed or 0])
    if not num:
        score = f'{{"value": {30 + rng.standard_normal()}, "n": 1, "signature": ""}}'
        pairs = ", ".join(f'"{split}/bleu": {score}' for split in context.config["splits"])
        (context.directory / "metrics.json").write_text(f"{{{pairs}}}")
        return
    shape = (num, _NUM_WORDS)
    words = np.random.default_rng(7).integers(50, size=shape)
    guessed = np.where(rng.random(shape) > 0.3, words, rng.integers(50, size=shape))
    references, guesses = (
        [" ".join(f"word{word}" for word in line) for line in lines.tolist()] for lines in (words, guessed)
    )
    for split in context.config["splits"]:
        scored = evaluate_text(guesses, references, metrics=("bleu",))
        write_evaluation(context.directory, split, guesses, references, scored)


def finished_study(directory: Path, num_cells: int, num_seeds: int, num_segments: int = 0) -> Study:
    """A study whose trials have all finished, in a store below the directory."""
    study = Study.from_dict(
        {
            "name": f"verdicts-{num_cells}",
            "system": "benchmarks.verdicts",
            "base": {"segments": num_segments},
            "factors": {"arm": {"target": "arm", "levels": list(range(num_cells)), "baseline": 0}},
            "objective": {"metric": "dev/bleu", "direction": "maximize"},
            "seeds": list(range(num_seeds)),
            "storage": {"path": str(directory)},
        }
    )
    store = ArtifactStore.open(directory)
    for cell in cells(study):
        resolved = resolve_cell(study, cell)
        config = resolved.config.model_dump()
        for seed in study.seeds:
            run_trial(resolved.graph(seed), store, reporter=NullReporter(), config=config, is_waiting=False)
    return study


def cost_s(study: Study, directory: Path) -> float:
    """CPU seconds to read a study and to write its report in all formats, as at the end of ``run``."""
    began_s = time.process_time()
    result = StudyResult.read(study, ArtifactStore.open(directory))
    result.report(directory / "report", FORMATS)
    return time.process_time() - began_s


def _measure(num_cells: int, num_seeds: int, num_segments: int = 0) -> float:
    with tempfile.TemporaryDirectory() as name:
        study = finished_study(Path(name), num_cells, num_seeds, num_segments)
        return cost_s(study, Path(name))


def report() -> list[str]:
    """Write what was measured."""
    _measure(2, 2)  # imports
    costs = {num: _measure(num, NUM_SEEDS) for num in CELLS}
    text = _measure(*TEXT.values())
    return [
        "## Reading a finished study and writing its report in all formats",
        "",
        "| cells | seeds | segments | CPU-s |",
        "|---|---|---|---|",
        *(f"| {num} | {NUM_SEEDS} | none | {cost:.1f} |" for num, cost in costs.items()),
        f"| {TEXT['cells']} | {TEXT['seeds']} | {TEXT['segments']:,} | {text:.1f} |",
    ]
