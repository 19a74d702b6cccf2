"""What a trial of a masked language model reports beside what all trials do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from nlgraft.study.data.metric import Metric
from trainables.embedding_transfer.masked_lm_config import REPORT_STEPS

_PER_TOKEN = "Masked language models: cross-entropy per hidden token of whole hidden words"
_PER_CHARACTER = "Masked language models: cross-entropy per hidden character, one unit for all vocabularies"


def _loss(
    split: Literal["dev", "test"], unit: Literal["token", "character"], step: int | None = None
) -> Metric:
    when = "" if step is None else f", after {step} steps of continued training"
    if step == 0:
        when = ", right after the exchange of the vocabulary"
    what = _PER_TOKEN if unit == "token" else _PER_CHARACTER
    return Metric(direction="minimize", unit=f"nats per {unit}", split=split, description=f"{what}{when}.")


MASKED_LM_METRICS: Mapping[str, Metric] = {
    **{f"dev/mlm_loss_per_char.step_{step}": _loss("dev", "character", step) for step in REPORT_STEPS},
    "dev/mlm_loss_per_char": _loss("dev", "character"),
    "test/mlm_loss_per_char": _loss("test", "character"),
    **{f"dev/loss.step_{step}": _loss("dev", "token", step) for step in REPORT_STEPS},
    "test/loss": _loss("test", "token"),
    "dev/mlm_chars": Metric(
        direction="maximize",
        unit="characters",
        split="dev",
        description="Hidden characters that were scored: the same in trials that may be compared.",
    ),
    "dev/mlm_unknown": Metric(
        direction="minimize",
        unit="share",
        split="dev",
        description="Hidden tokens that stand for text the vocabulary lacks: cheap to predict, so near zero.",
    ),
    "upstream/dev_mlm_loss_per_char": _loss("dev", "character"),
}
"""Metrics by name."""
