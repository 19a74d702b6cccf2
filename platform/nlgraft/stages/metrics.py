"""Tables of the metrics that the stages write, for systems to compose theirs of; without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

from nlgraft.stages.config import ExtractMethod, TextMetric
from nlgraft.study.data.metric import Metric

Split = Literal["dev", "test"]
SPLITS: tuple[Split, ...] = ("dev", "test")
_TOKENS = "dev/reference_length"
_PER_TOKEN = "Cross-entropy per target token; tokens of different vocabularies are not the same unit."

TEXT_METRICS: Mapping[str, tuple[Literal["maximize", "minimize"], str, str]] = {
    "bleu": ("maximize", "BLEU points", "Cased BLEU of beam search; its tokenizer follows the script."),
    "bleu_zh": ("maximize", "BLEU points", "BLEU of beam search with sacreBLEU's Chinese tokenizer."),
    "chrf": ("maximize", "chrF points", "chrF2 of beam search."),
    "ter": ("minimize", "TER points", "Translation edit rate of beam search."),
    "rouge1": ("maximize", "ROUGE points", "ROUGE-1 F1 of beam search."),
    "rouge2": ("maximize", "ROUGE points", "ROUGE-2 F1 of beam search."),
    "rouge_lsum": ("maximize", "ROUGE points", "ROUGE-Lsum F1 of beam search, sentence by sentence."),
    "rouge_l": ("maximize", "ROUGE points", "ROUGE-L F1 of beam search."),
    "meteor": ("maximize", "METEOR points", "METEOR of beam search without synonyms."),
}
"""Measures of text: direction, unit, description."""


def metric_name(name: str, prefix: str = "") -> str:
    """Name a metric so that an upstream model's cannot be taken for the trial's: ``upstream/dev_loss``."""
    return f"{prefix}/{name.replace('/', '_')}" if prefix else name


def text_metrics(
    names: Sequence[str] = get_args(TextMetric), splits: Sequence[Split] = SPLITS, prefix: str = ""
) -> dict[str, Metric]:
    """Describe the measures of text that scores hold."""
    return {
        metric_name(f"{split}/{name}", prefix): Metric(
            direction=TEXT_METRICS[name][0],
            unit=TEXT_METRICS[name][1],
            split=split,
            description=TEXT_METRICS[name][2],
        )
        for split in splits
        for name in names
    }


def document_metrics(splits: Sequence[Split] = SPLITS) -> dict[str, Metric]:
    """Describe what scores add where lines belong to documents."""
    return {
        f"{split}/doc_bleu": Metric(
            direction="maximize",
            unit="BLEU points",
            split=split,
            description="BLEU of whole documents, the sentences of each joined to one line (d-BLEU).",
        )
        for split in splits
    }


ROUGE: tuple[TextMetric, ...] = ("rouge1", "rouge2", "rouge_l", "rouge_lsum")
"""Measures of summaries."""
EXTRACTS: tuple[ExtractMethod, ...] = get_args(ExtractMethod)
"""Summaries taken from the text itself, as prefixes of their metrics."""


def extract_metrics(splits: Sequence[Split] = SPLITS) -> dict[str, Metric]:
    """Describe the measures of summaries that are taken from the text itself."""
    found: dict[str, Metric] = {}
    for method in EXTRACTS:
        found |= text_metrics(ROUGE, splits, method)
    what = "Of the first sentences (lead) or the best ones (oracle) of the text as its summary."
    return {name: replace(metric, is_fixed=True, description=what) for name, metric in found.items()}


def output_metrics(splits: Sequence[Split] = SPLITS) -> dict[str, Metric]:
    """Describe what is measured of a trial's output beside its quality: lengths, speed, calibration."""
    return {f"{split}/{name}": metric for split in splits for name, metric in _output_metrics(split).items()}


def _output_metrics(split: Split) -> dict[str, Metric]:
    return {
        "hypothesis_length": Metric(
            direction="minimize",
            unit="tokens",
            split=split,
            description="Length of the output in tokens of the model, end of sentence not counted.",
        ),
        "reference_length": Metric(
            direction="minimize",
            unit="tokens",
            split=split,
            is_fixed=True,
            description="Length of the references in tokens of the model's vocabulary.",
        ),
        "sentences_per_s": Metric(
            direction="maximize",
            unit="sentences/s",
            split=split,
            is_time=True,
            description="Speed of beam search, tokenising and detokenising left out.",
        ),
        "ece": Metric(
            direction="minimize",
            unit="points",
            split=split,
            description="Inference ECE of beam search: confidence against being right.",
        ),
    }


def saved_metrics(splits: Sequence[Split] = SPLITS) -> dict[str, Metric]:
    """Describe what scores add where another tokenizer is compared with the model's."""
    return {
        f"{split}/length_saved": Metric(
            direction="maximize",
            unit="share",
            split=split,
            is_fixed=True,
            description="Share of reference tokens that the vocabulary saves against the upstream one.",
        )
        for split in splits
    }


def training_metrics(prefix: str = "") -> dict[str, Metric]:
    """Describe what a training of the whole model reports: that of the result unless a prefix is given."""
    metrics = {
        "dev/loss": Metric(
            direction="minimize",
            unit="nats per token",
            split="dev",
            counted_by="" if prefix else _TOKENS,
            description=_PER_TOKEN,
        ),
        "parameters/total": Metric(
            direction="minimize",
            unit="parameters",
            split=None,
            is_fixed=True,
            description="Of the model, tied ones once.",
        ),
        "parameters/trained": Metric(
            direction="minimize",
            unit="parameters",
            split=None,
            is_fixed=True,
            description="Of the model, those that learned.",
        ),
        "train_examples": Metric(
            direction="minimize",
            unit="examples",
            split=None,
            is_fixed=True,
            description="Examples trained on, each as often as it was seen.",
        ),
        "train_tokens": Metric(
            direction="minimize",
            unit="tokens",
            split=None,
            is_fixed=True,
            description="Tokens trained on, those whose loss was taken, each as often as it was seen.",
        ),
        "train_s": Metric(
            direction="minimize",
            unit="s",
            split=None,
            is_time=True,
            description="Time of the training steps, evaluation left out.",
        ),
    }
    return {metric_name(name, prefix): metric for name, metric in metrics.items()}


def start_metrics(prefix: str = "") -> dict[str, Metric]:
    """Describe the dev loss that a training reports before its first step."""
    description = f"{_PER_TOKEN} Right after weights were carried over."
    loss = Metric(
        direction="minimize",
        unit="nats per token",
        split="dev",
        counted_by="" if prefix else _TOKENS,
        description=description,
    )
    return {metric_name("dev/loss.step_0", prefix): loss}


NATS_PER_CHAR: Mapping[str, Metric] = {
    "dev/nats_per_char": Metric(
        direction="minimize",
        unit="nats per character",
        split="dev",
        description="Cross-entropy of the best segmentation per reference character: one unit for all "
        "vocabularies.",
    )
}
"""Metrics that the scores add where they are given the training of the model."""


def language_model_metrics(prefix: str = "") -> dict[str, Metric]:
    """Describe what the pretraining of a language model reports."""
    perplexities = {
        "dev/perplexity": "Perplexity per token; that of two towers is conditioned on all other tokens.",
        "dev/char_perplexity": "Perplexity per character of uncut lines: one unit for all vocabularies.",
    }
    described = {
        metric_name(name, prefix): Metric(
            direction="minimize", unit="perplexity", split="dev", description=description
        )
        for name, description in perplexities.items()
    }
    return training_metrics(prefix) | described


_PER_MASKED_TOKEN = "Cross-entropy per masked token of whole masked words"
_PER_MASKED_CHARACTER = "Cross-entropy per character of masked words, one unit for all vocabularies"
MASKED_LOSSES: Mapping[str, tuple[str, str]] = {
    "loss": ("nats per token", _PER_MASKED_TOKEN),
    "mlm_loss_per_char": ("nats per character", _PER_MASKED_CHARACTER),
}
"""Losses of masked language models: unit and description."""


def masked_metrics(splits: Sequence[Split] = SPLITS, prefix: str = "") -> dict[str, Metric]:
    """Describe what training and scores of a masked language model report, beside size and time."""
    losses = {
        f"{split}/{name}": Metric(direction="minimize", unit=unit, split=split, description=f"{description}.")
        for split in splits
        for name, (unit, description) in MASKED_LOSSES.items()
    }
    amounts = {
        "dev/mlm_chars": Metric(
            direction="maximize",
            unit="characters",
            split="dev",
            is_fixed=True,
            description="Masked characters that were scored: the same in trials that may be compared.",
        ),
        "dev/mlm_unknown": Metric(
            direction="minimize",
            unit="share",
            split="dev",
            description="Masked tokens that stand for text outside the vocabulary: cheap to predict, so near "
            "zero.",
        ),
    }
    return {metric_name(name, prefix): metric for name, metric in (losses | amounts).items()}


def masked_step_metrics(steps: Sequence[int]) -> dict[str, Metric]:
    """Describe the dev losses that a training of a masked language model reports after some steps."""
    return {
        f"dev/{name}.step_{step}": Metric(
            direction="minimize",
            unit=unit,
            split="dev",
            description=f"{description}, after {step} steps of training.",
        )
        for name, (unit, description) in MASKED_LOSSES.items()
        for step in steps
    }


def exchange_metrics() -> dict[str, Metric]:
    """Describe what an exchange of the vocabulary reports."""
    return {
        "transfer/copied": Metric(
            direction="maximize",
            unit="share of rows",
            split=None,
            is_fixed=True,
            description="New rows that are the row of the same token or of the special token of its role.",
        ),
        "transfer/drawn": Metric(
            direction="minimize",
            unit="share of rows",
            split=None,
            is_fixed=True,
            description="New rows drawn at random.",
        ),
    }


_CLASS_METRICS: Mapping[str, tuple[Literal["maximize", "minimize"], str, str]] = {
    "accuracy": ("maximize", "points", "Share of lines whose likeliest class is right."),
    "macro_f1": ("maximize", "points", "F1 averaged over the classes."),
    "mcc": ("maximize", "points", "Matthews' correlation of predicted and true classes."),
    "loss.class": ("minimize", "nats per line", "Cross-entropy of the true class."),
    "ece": ("minimize", "points", "Expected calibration error of the likeliest class."),
}


def classification_metrics(splits: Sequence[Split] = SPLITS) -> dict[str, Metric]:
    """Describe what a classifier reports."""
    described = {
        f"{split}/{name}": Metric(direction=direction, unit=unit, split=split, description=description)
        for split in splits
        for name, (direction, unit, description) in _CLASS_METRICS.items()
    }
    described["dev/accuracy.curve"] = Metric(
        direction="maximize",
        unit="points",
        split="dev",
        description="Mean accuracy over the steps of the training: the area under its curve of evaluations.",
    )
    cost = {name: metric for name, metric in training_metrics().items() if name != "dev/loss"}
    return cost | described
