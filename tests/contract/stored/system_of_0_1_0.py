"""The system whose study lies in `store_of_0_1_0.json`; neither is changed any more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nlgraft.basics.strict_config import StrictConfig
from nlgraft.pipeline.stage import Stage, StageContext, StageGraph
from nlgraft.study.data.system import Metric

DESCRIPTION = "Adds two numbers"
PAPER = "none"
METRICS = {
    "dev/sum": Metric(direction="maximize", unit="points", split="dev"),
    "test/sum": Metric(direction="maximize", unit="points", split="test"),
}


class Config(StrictConfig):
    """The numbers."""

    data: Mapping[str, Any] = {}
    gain: float = 0.0
    noise: float = 0.0


def stage_graph(config: Config, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
    """training -> scores."""
    numbers = {"gain": config.gain, "noise": config.noise}
    training = Stage(name="training", run=f"{__name__}:run_training", config=numbers, seed=seed)
    scores = Stage(
        name="scores",
        run=f"{__name__}:run_scores",
        config={"splits": list(splits)},
        inputs={"training": training},
    )
    return StageGraph(scores)


def run_training(context: StageContext) -> None:
    """Add."""
    total = context.config["gain"] + context.config["noise"] + context.seed
    context.report(1, {"dev/sum": total})
    (context.directory / "sum.json").write_text(json.dumps(total))
    (context.directory / "curves.json").write_text(json.dumps({"dev/sum": [[1, total, 1000]]}))


def run_scores(context: StageContext) -> None:
    """Give the sum as the score of each split."""
    total = json.loads((Path(context.inputs["training"]) / "sum.json").read_text())
    metrics = {
        f"{split}/sum": {"value": total, "n": 1, "signature": "sum"} for split in context.config["splits"]
    }
    (context.directory / "metrics.json").write_text(json.dumps(metrics))
