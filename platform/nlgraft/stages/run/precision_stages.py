"""The stage that measures and chooses a precision."""

from __future__ import annotations

from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.pipeline.stage import StageContext
from nlgraft.training.precision import measure_gain, write_choice


def choose(context: StageContext) -> None:
    """Measure how much faster bf16 is than fp32 here, and write which of them trainings are to use."""
    gain = measure_gain(context.device)
    is_bf16 = write_choice(context.directory, gain)
    scores = {
        "precision/is_bf16": Score("is_bf16", float(is_bf16), 1, "maximize", "1: bf16, 0: fp32"),
        "precision/bf16_gain": Score(
            "bf16_gain", gain, 1, "maximize", "speed of bf16 by that of fp32 in training; 0: not supported"
        ),
    }
    write_metrics(context.directory, scores)
