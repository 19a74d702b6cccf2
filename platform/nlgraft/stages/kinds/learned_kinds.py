"""The kind of stage that scores translations by a learned metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T


class LearnedScoreSettings(Settings):
    """A learned metric. Where its checkpoint lies is among the stage's locations, as ``checkpoint``."""

    name: str
    """Its name in the study."""
    metric: str
    """Import path of the callable."""
    version: int
    """Version of its code, as the study states it."""
    options: dict[str, Any]
    """Its keyword arguments."""
    content: dict[str, Any] | None
    """Digests of the checkpoint's files; null without one."""
    # Constants: fingerprints of stored scores hold them.
    engine: Literal["torch"] = "torch"
    dev_precision: Literal["fp32"] = "fp32"


@dataclass(frozen=True, kw_only=True)
class LearnedScoreInputs(Inputs[T]):
    """A corpus with sources and a target, and translations by split."""

    corpus: T
    translations: Mapping[str, T]


LEARNED_SCORE = StageKind(
    "nlgraft.stages.run.learned_stages:score",
    LearnedScoreSettings,
    LearnedScoreInputs,
    check="nlgraft.stages.kind_checks:learned_metrics",
)
