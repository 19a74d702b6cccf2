"""Metrics that a trial of another vocabulary reports."""

from __future__ import annotations

from typing import Literal

from nlgraft.evaluation.metric_config import SCORED
from nlgraft.stages.metrics import EXCHANGE, OUTPUT, TEXT, TRAINING_COST, fixed, less, more, prefixed
from nlgraft.study.data.system import Metric
from trainables.llm_vocabulary.config import KEPT


def _losses(split: Literal["dev", "test"]) -> dict[str, Metric]:
    descriptions = {
        "loss": "Cross-entropy per token of lines, or of a task's targets, ends included: no unit between "
        "vocabularies.",
        "bits_per_byte": SCORED["bits_per_byte"].description,
    }
    return {
        f"{split}/{name}": less(
            unit=SCORED[name].unit,
            split=split,
            is_tracked=True,
            description=description,
        )
        for name, description in descriptions.items()
    }


def _time(
    direction: Literal["maximize", "minimize"],
    unit: str,
    description: str,
) -> Metric:
    return Metric(direction=direction, unit=unit, split=None, is_time=True, description=description)


TRAINING = {
    **_losses("dev"),
    **TRAINING_COST,
    "train_bytes": fixed("minimize", "bytes", "Bytes trained on, each as often as it was read."),
    "train_bytes_per_s": _time("maximize", "bytes/s", "Bytes of text per second of the training steps."),
}
"""Of a training; examples are sequences of packed lines."""
DISTILLATION = {
    "dev/loss": less(
        unit="squared distance",
        split="dev",
        description="Mean squared distance of hidden states under new and old tokens; of an untied output "
        "table with the cross-entropy that it learns from.",
    ),
    **TRAINING_COST,
}
"""Of the fitting of new rows; examples are contexts."""
TEXT_MEASURES = {
    "text/tokens_per_word": fixed("minimize", "tokens", "Mean tokens per space-separated word of test."),
    "text/tokens_per_byte": fixed("minimize", "tokens", "Mean tokens per byte of test."),
    "text/unknown_tokens": fixed(
        "minimize", "share", "Tokens of test that stand for text outside the vocabulary: cheap to predict."
    ),
    "text/untrained_tokens": less(
        unit="share",
        description="Tokens of test that are new and were never read in the training.",
    ),
}
GENERATION = {
    "generation/tokens_per_s": _time(
        "maximize", "tokens/s", "Speed of sampling by transformers with its cache, eight texts at a time."
    ),
    "generation/bytes_per_s": _time(
        "maximize", "bytes/s", "The same in bytes of text, by the bytes per token of dev."
    ),
}
CATCH_UP = {
    "catch_up/is_reached": more(
        unit="share",
        split="dev",
        description="1 where dev bits per byte became as low as the old vocabulary's best with the same "
        "training, else 0.",
    ),
    "catch_up/s": _time(
        "minimize", "s", "Seconds of training until then; all of them where it never was, which favours it."
    ),
}
TASK = {
    **TEXT,
    **{name: metric for name, metric in OUTPUT.items() if not name.endswith("reference_length")},
}
"""Of what is written in a task."""
METRICS = {
    **TRAINING,
    **_losses("test"),
    **prefixed("old_domain", _losses("test")),
    **prefixed("upstream", TRAINING),
    **prefixed("donor", TRAINING),
    **prefixed("distillation", DISTILLATION),
    **{f"{KEPT}/{name}": metric for name, metric in TRAINING.items()},
    **EXCHANGE,
    **TEXT_MEASURES,
    **GENERATION,
    **CATCH_UP,
    **TASK,
}
"""Metrics by name; an arm without a stage lacks the metrics of that stage."""
