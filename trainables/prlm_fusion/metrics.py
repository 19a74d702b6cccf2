"""Metrics that a trial of PrLM fusion reports."""

from __future__ import annotations

from nlgraft.stages.metrics import EXTRACTS, NATS_PER_CHAR, OUTPUT, TEXT, TRAINING, less, prefixed

_PRETRAINED = {
    "bert": ("BERT", "nats per masked token"),
    "gpt": ("GPT", "nats per token"),
    "electra": ("ELECTRA, generator and weighted discriminator", "nats per masked token"),
    "distilbert": ("DistilBERT, all terms of the loss", "nats per masked token"),
}
METRICS = {
    **TRAINING,
    **NATS_PER_CHAR,
    **TEXT,
    **OUTPUT,
    **EXTRACTS,
    **prefixed("first_stage", TRAINING),
    **{
        f"{kind}/dev_loss": less(
            unit=unit,
            split="dev",
            description=f"Mean loss of a pretrained {name}; of the last one where a trial has several.",
        )
        for kind, (name, unit) in _PRETRAINED.items()
    },
}
"""Metrics by name; an arm without a stage lacks the metrics of that stage."""
