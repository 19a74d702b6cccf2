"""Tables of the metrics that the stages write, for systems to compose theirs of; without torch.

What is scored segment by segment has direction, unit and description in `nlgraft.evaluation.metric_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

from nlgraft.evaluation.metric_config import SCORED, Direction, TextMetric
from nlgraft.stages.config_parts import CLASS_METRICS, ExtractMethod
from nlgraft.study.data.system import Metric

Split = Literal["dev", "test"]
SPLITS: tuple[Split, ...] = ("dev", "test")
Table = Mapping[str, Metric]
more = partial(Metric, direction="maximize", split=None)
"""Describes a metric of which more is better; ``split`` is one of its settings."""
less = partial(Metric, direction="minimize", split=None)
"""Describes a metric of which less is better."""


def fixed(direction: Direction, unit: str, description: str) -> Metric:
    """Describe a measure of text that no seed changes."""
    return Metric(direction=direction, unit=unit, split=None, is_fixed=True, description=description)


def metric_name(name: str, prefix: str = "") -> str:
    """Name a metric so that an upstream model's cannot be taken for the trial's: ``upstream/dev_loss``."""
    return f"{prefix}/{name.replace('/', '_')}" if prefix else name


def prefixed(prefix: str, table: Table) -> dict[str, Metric]:
    """Describe the metrics of a model that is not the trial's result."""
    # The metric that counts its units has no counterpart under the prefix.
    return {metric_name(name, prefix): replace(metric, counted_by="") for name, metric in table.items()}


def _on(splits: Sequence[Split], table: Table) -> dict[str, Metric]:
    return {
        f"{split}/{name}": replace(metric, split=split) for split in splits for name, metric in table.items()
    }


def _statistic(name: str, **changes: Any) -> Metric:
    # A suffix, as in ``loss.class``, tells which of several such statistics it is.
    definition = SCORED[name.partition(".")[0]]
    plain = Metric(
        direction=definition.direction, unit=definition.unit, split=None, description=definition.description
    )
    return replace(plain, **changes)


TEXT = _on(SPLITS, {name: _statistic(name) for name in get_args(TextMetric)})
"""Metrics of text."""
DOCUMENTS = _on(SPLITS, {"doc_bleu": _statistic("doc_bleu")})
"""Further scores of text with documents."""
ROUGE: tuple[TextMetric, ...] = ("rouge1", "rouge2", "rouge_l", "rouge_lsum")
"""Measures of summaries."""
EXTRACT_METHODS = get_args(ExtractMethod)
"""Summaries taken from the text itself, as prefixes of their metrics."""
_EXTRACTED = "Of the first sentences (lead) or the best ones (oracle) of the text as its summary."
EXTRACTS = {
    name: metric
    for method in EXTRACT_METHODS
    for name, metric in prefixed(
        method,
        _on(SPLITS, {name: _statistic(name, is_fixed=True, description=_EXTRACTED) for name in ROUGE}),
    ).items()
}
"""Measures of summaries that are taken from the text itself."""
OUTPUT = _on(
    SPLITS,
    {
        "hypothesis_length": _statistic("hypothesis_length"),
        "reference_length": _statistic("reference_length", is_fixed=True),
        "sentences_per_s": more(
            unit="sentences/s",
            is_time=True,
            description="Speed of beam search, tokenising and detokenising left out.",
        ),
        "tokens_per_s": more(
            unit="tokens/s",
            is_time=True,
            description="The same in tokens of the output, ends of sentences not counted.",
        ),
        "ece": _statistic("ece"),
    },
)
"""Further measures of a trial's output: lengths, speed, calibration."""
SAVED = _on(
    SPLITS,
    {
        "length_saved": more(
            unit="share",
            is_fixed=True,
            description="Share of reference tokens that the vocabulary saves against the upstream one.",
        )
    },
)
"""Further scores if another tokenizer is compared with the model's."""
NATS_PER_CHAR = _on(
    ("dev",),
    {
        "nats_per_char": less(
            unit="nats per character",
            description="Cross-entropy of the best segmentation per reference character, of lines that were "
            "not cut: one unit for all vocabularies.",
        )
    },
)
"""Further scores if the training of the model is among the inputs."""

_PER_TOKEN = "Cross-entropy per target token; tokens of different vocabularies are not the same unit."
_LOSS = _statistic("loss", is_tracked=True, counted_by="dev/reference_length", description=_PER_TOKEN)
TRAINING_COST: Table = {
    "parameters/total": less(unit="parameters", is_fixed=True, description="Of the model, tied ones once."),
    "parameters/trained": less(
        unit="parameters", is_fixed=True, description="Of the model, those that learned."
    ),
    "train_examples": less(
        unit="examples", is_fixed=True, description="Examples trained on, each as often as it was seen."
    ),
    "train_tokens": less(
        unit="tokens",
        is_fixed=True,
        description="Tokens trained on, those whose loss was taken, each as often as it was seen.",
    ),
    "train_s": less(unit="s", is_time=True, description="Time of the training steps, evaluation left out."),
}
"""Size and cost of a training."""
TRAINING: Table = {**_on(("dev",), {"loss": _LOSS}), **TRAINING_COST}
"""Metrics of a training of the whole model."""
START = _on(
    ("dev",),
    {
        "loss.step_0": replace(
            _LOSS, is_tracked=False, description=f"{_PER_TOKEN} Right after weights were carried over."
        )
    },
)
"""The dev loss that a training reports before its first step."""
LANGUAGE_MODEL: Table = {
    **TRAINING,
    **_on(
        ("dev",),
        {
            "perplexity": _statistic(
                "perplexity",
                description="Perplexity per token; that of two towers is conditioned on all other tokens.",
            ),
            "char_perplexity": _statistic(
                "perplexity",
                description="Perplexity per character of uncut lines: one unit for all vocabularies.",
            ),
        },
    ),
}
"""Metrics of the pretraining of a language model."""

_MASKED_LOSSES: Table = {
    "loss": _statistic(
        "loss", is_tracked=True, description="Cross-entropy per masked token of whole masked words."
    ),
    "mlm_loss_per_char": _statistic("mlm_loss_per_char", is_tracked=True),
}
MASKED = _on(
    ("dev",),
    {
        **_MASKED_LOSSES,
        "mlm_chars": more(
            unit="characters",
            is_fixed=True,
            description="Masked characters that were scored: the same in trials that may be compared.",
        ),
        "mlm_unknown": less(
            unit="share",
            description="Masked tokens that stand for text outside the vocabulary: cheap to predict, so "
            "near zero.",
        ),
    },
)
"""Dev metrics of a masked language model's training and scores, besides size and time."""
MASKED_TEST = _on(("test",), _MASKED_LOSSES)
"""Test metrics of a masked language model."""


def masked_at(steps: Sequence[int]) -> dict[str, Metric]:
    """Describe the dev losses that a training of a masked language model reports after some steps."""
    return {
        f"dev/{name}.step_{step}": replace(
            metric,
            split="dev",
            is_tracked=False,
            description=f"{metric.description[:-1]}, after {step} steps of training.",
        )
        for name, metric in _MASKED_LOSSES.items()
        for step in steps
    }


EXCHANGE: Table = {
    "transfer/copied": more(
        unit="share of rows",
        is_fixed=True,
        description="New rows that are the row of the same token or of the special token of its role.",
    ),
    "transfer/drawn": less(unit="share of rows", is_fixed=True, description="New rows drawn at random."),
}
"""Metrics of an exchange of the vocabulary."""
_CLASSES: Table = {name: _statistic(name, is_tracked=True) for name in CLASS_METRICS}
CLASSIFICATION: Table = {
    **TRAINING_COST,
    **_on(
        SPLITS,
        _CLASSES
        | {
            "loss.class": _statistic(
                "loss",
                unit="nats per line",
                is_tracked=True,
                description="Cross-entropy of the true class.",
            )
        },
    ),
    **_on(
        ("dev",),
        {
            "accuracy.curve": _statistic(
                "accuracy",
                description="Mean accuracy over the steps of the training: the area under its curve of "
                "evaluations.",
            )
        },
    ),
}
"""Metrics of a classifier."""
