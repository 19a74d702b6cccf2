"""Settings and inputs of the paper's own stages: generator training and new embedding layers. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from nlgraft.stages.config_parts import MaskedSpansConfig
from nlgraft.stages.kinds.exchange_kinds import PlanInputs, PlanSettings
from nlgraft.stages.kinds.seq2seq_kinds import TrainInputs, TrainSettings
from nlgraft.stages.kinds.training_settings import TrainingSettings
from nlgraft.stages.stage_kind import Inputs, StageKind, T
from nlgraft.training.train_config import MaskingConfig, SmoothedTrainConfig, View
from trainables.embedding_transfer.config import SegmentationRates

_STAGES = "trainables.embedding_transfer.stages"


class GeneratorSettings(TrainingSettings[SmoothedTrainConfig]):
    """Training of the generators; a masked language model has a single side, called ``encoder``."""

    kind: Literal["avg", "att", "patt"]
    """Architecture of the generators."""
    rates: Mapping[str, SegmentationRates]
    """Probabilities of splits and merges, by perturbed side."""
    cap: int | None
    """Maximum number of similar tokens of a token."""
    order: Literal["id", "shortest", "frequency"]
    """Which containing tokens are preferred under the cap."""
    scale: Literal["none", "inv_size"]
    """Factor on generated rows."""
    init: Literal["zeros", "normal"]
    """Initial weights."""
    distillation_lambda: float
    """Weight of L_d."""
    distillation_reduction: Literal["sum_dim", "mean_dim"]
    """Sum or mean of squared distances over the width."""
    distillation_align: Literal["input", "target"]
    """Decoder states of a word that L_d compares."""
    num_dev_sentences: int
    """Number of upstream dev sentences on which generators are evaluated."""
    masked_spans: MaskedSpansConfig | None = None
    """Masked spans in the sources of a denoising model."""
    masking: MaskingConfig | None = None
    """Objective of a masked language model; null: the model is an encoder-decoder."""
    new_mask_rate: float | None = None
    """Share of the new tokens that are masked and predicted; null for encoder-decoders."""
    # Out of the fingerprint where it is null: generators are older than it.
    view: View | None = Field(default=None, exclude_if=lambda view: view is None)
    """What is put around the lines of a model that reads their language; null: their end alone."""


@dataclass(frozen=True, kw_only=True)
class GeneratorInputs(Inputs[T]):
    """The frozen model, its text, and the tokenizer of each perturbed side."""

    model: T
    encoded: T
    tokenizers: Mapping[str, T]


@dataclass(frozen=True, kw_only=True)
class GeneratedPlanInputs(PlanInputs[T]):
    """Inputs of a plan, and the trained generators that make the rows."""

    generator: T


class NewLayersSettings(TrainSettings):
    """Training of new embedding layers in front of a frozen model, the input ``start``."""

    sides: tuple[str, ...]
    """Sides whose embeddings are replaced, among ``encoder`` and ``decoder``."""
    num_layers: int
    """Number of layers between a new table and the pretrained model."""


GENERATOR = StageKind(
    f"{_STAGES}.generator:train_generator", GeneratorSettings, GeneratorInputs, is_distributed=True
)
GENERATED_PLAN = StageKind(
    f"{_STAGES}.generator:plan_by_generator", PlanSettings, GeneratedPlanInputs, version=2
)
NEW_LAYERS = StageKind(
    f"{_STAGES}.independent:attach_embeddings", NewLayersSettings, TrainInputs, is_distributed=True
)
