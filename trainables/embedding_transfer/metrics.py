"""What a trial of embedding transfer reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from nlgraft.study.data.metric import Metric
from trainables.embedding_transfer.masked_lm_metrics import MASKED_LM_METRICS

_TEXT: tuple[tuple[str, Literal["maximize", "minimize"], str, str], ...] = (
    ("bleu", "maximize", "BLEU points", "Cased 13a BLEU of beam search (section 4.1)."),
    ("chrf", "maximize", "chrF points", "chrF2 of beam search."),
    ("bleu_zh", "maximize", "BLEU points", "BLEU of beam search with sacreBLEU's Chinese tokenizer."),
    ("rouge_l", "maximize", "ROUGE points", "ROUGE-L F1 of beam search (Table 3, questions)."),
    ("meteor", "maximize", "METEOR points", "METEOR of beam search without synonyms (Table 3, questions)."),
    ("ece", "minimize", "points", "Inference ECE of beam search: confidence against being right (Fig. 3)."),
    ("ter", "minimize", "TER points", "Translation edit rate of beam search."),
    (
        "reference_length",
        "minimize",
        "tokens",
        "References in tokens of the downstream vocabulary.",
    ),
)

_SAVED = "Share of reference tokens that the downstream vocabulary saves against the upstream one."


def _split_metrics(split: Literal["dev", "test"]) -> dict[str, Metric]:
    found = {
        f"{split}/{name}": Metric(direction=direction, unit=unit, split=split, description=description)
        for name, direction, unit, description in _TEXT
    }
    found[f"{split}/length_saved"] = Metric(
        direction="maximize", unit="share", split=split, description=_SAVED
    )
    found[f"{split}/sentences_per_s"] = Metric(
        direction="maximize",
        unit="sentences/s",
        split=split,
        is_time=True,
        description="Speed of beam search, tokenising and detokenising left out.",
    )
    return found


METRICS: Mapping[str, Metric] = {
    "dev/loss": Metric(
        direction="minimize",
        unit="nats per token",
        split="dev",
        description="Cross-entropy per target token; tokens of different vocabularies are not the same unit.",
    ),
    "dev/nats_per_char": Metric(
        direction="minimize",
        unit="nats per character",
        split="dev",
        description="Cross-entropy of the best segmentation per reference character: one unit for all arms.",
    ),
    **_split_metrics("dev"),
    **_split_metrics("test"),
    "upstream/dev_bleu": Metric(
        direction="maximize",
        unit="BLEU points",
        split="dev",
        description="The pretrained model on dev of its own domain.",
    ),
    "upstream/dev_loss": Metric(
        direction="minimize",
        unit="nats per token",
        split="dev",
        description="The pretrained model on dev of its own domain.",
    ),
    "upstream/parameters": Metric(
        direction="minimize", unit="parameters", split=None, description="Of the pretrained model."
    ),
    "generator/dev_loss": Metric(
        direction="minimize",
        unit="nats per token",
        split="dev",
        description="L_p + lambda L_d of the generator on split and merged dev text of domain A.",
    ),
    "generator/parameters": Metric(
        direction="minimize", unit="parameters", split=None, description="0, d or 6d (section 3.2)."
    ),
    "parameters/total": Metric(
        direction="minimize", unit="parameters", split=None, description="Of the finetuned model."
    ),
    "parameters/trained": Metric(
        direction="minimize", unit="parameters", split=None, description="Of the finetuned model, not frozen."
    ),
    "transfer/copied": Metric(
        direction="maximize",
        unit="share of rows",
        split=None,
        description="New rows that are the row of the same token or of the special token of the same role.",
    ),
    "transfer/drawn": Metric(
        direction="minimize", unit="share of rows", split=None, description="New rows drawn at random."
    ),
    "downstream/train_s": Metric(
        direction="minimize",
        unit="s",
        split=None,
        is_time=True,
        description="Time of the finetuning steps, evaluation left out.",
    ),
    **MASKED_LM_METRICS,
}
"""Metrics by name; arms that lack a stage lack its metrics."""
