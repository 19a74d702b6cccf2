"""A system that trains a tiny language model in the usual loop, slowly and with many checkpoints."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nlgraft.basics.strict_config import StrictConfig
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.study.data.system import Metric

DESCRIPTION = "A toy"
PAPER = "none"
METRICS = {"dev/loss": Metric(direction="minimize", unit="nats", split="dev")}


class Config(StrictConfig):
    """Settings of the toy."""

    data: Mapping[str, Any] = {}
    steps: int = 60
    pause_s: float = 0.0
    log: str = ""


def stage_graph(config, *, seed, splits):
    """A training alone."""
    settings = config.model_dump(exclude={"data"})
    run = f"{__name__}:run_training"
    return StageGraph(Stage(name="training", run=run, config=settings, seed=seed, workers="train"))


def run_training(context):
    """Train; note the number of workers, whether they divide the model, and the first step."""
    from nlgraft.nn.model_config import LlamaConfig
    from nlgraft.nn.transformers_lms import fresh_llama
    from nlgraft.text.batches import Ragged
    from nlgraft.training import loop
    from nlgraft.training.causal_text import LineEnds, PackedText, causal_losses, causal_objective
    from nlgraft.training.step import Training
    from nlgraft.training.train_config import TrainConfig

    loop.CHECKPOINT_EVERY_STEPS = 2
    config, latest = context.config, context.checkpoints.latest()
    if context.rank == 0:
        with Path(config["log"]).open("a") as file:
            file.write(f"of-{context.world_size} {context.is_sharded} {1 + (latest[0] if latest else 0)}\n")
    ids = [[4 + (3 * row + place) % 20 for place in range(1 + row * row % 9)] for row in range(40)]
    lines, ends = Ragged.of(ids), LineEnds(2, 2)

    class Text(PackedText):
        def batch(self, rows, epoch):
            time.sleep(config["pause_s"])
            return super().batch(rows, epoch)

    text = Text(lines, lines.lengths + 1, ends, budget=30, max_tokens=8, seed=1)
    sizes = LlamaConfig(d_model=8, num_layers=2, num_heads=2, ffn_dim=12, is_tied=True)
    model = fresh_llama(sizes, 25, end_id=2, max_tokens=8, seed=1).double()
    settings = TrainConfig(max_steps=config["steps"], peak_lr=0.01, warmup_steps=5, eval_every_steps=20)

    def measure(model):
        nats, tokens = causal_losses(model, lines, ends, 8).sum(0)
        return {"dev/loss": float(nats / tokens)}

    outcome = loop.train(Training(model, causal_objective, text, settings), context, evaluate=measure)
    score = {"dev/loss": {"value": outcome.best_value, "n": 40, "signature": "toy"}}
    (context.directory / "metrics.json").write_text(json.dumps(score))
