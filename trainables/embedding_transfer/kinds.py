"""The paper's own stages: settings and inputs of generator training and of new embedding layers. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nlgraft.stages.config import MaskedSpansConfig
from nlgraft.stages.kinds.seq2seq import TrainInputs, TrainSettings
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.training.config import TrainConfig
from trainables.embedding_transfer.config import RatesConfig, Sides

_STAGES = "trainables.embedding_transfer.stages"


class GeneratorSettings(Settings):
    """Training of the generators of the exchanged sides."""

    kind: Literal["avg", "att", "patt"]
    """Architecture of the generators."""
    sides: Sides
    """Whose vocabulary is exchanged; of no meaning to a masked language model, which has one table."""
    rates: Mapping[str, RatesConfig]
    """How words are split and merged, by side; by ``decoder`` for a masked language model."""
    train: TrainConfig
    """How long, how fast."""
    cap: int | None
    """Most similar tokens of a token."""
    order: Literal["id", "shortest", "frequency"]
    """Which containing tokens come first under the cap."""
    scale: Literal["none", "inv_size"]
    """Factor on generated rows."""
    init: Literal["zeros", "normal"]
    """Initial weights."""
    distillation_lambda: float
    """Weight of L_d."""
    distillation_reduction: Literal["sum_dim", "mean_dim"]
    """How L_d adds up over the width."""
    distillation_align: Literal["input", "target"]
    """Which decoder states of a word L_d compares."""
    num_dev_sentences: int
    """Upstream dev sentences on which generators are compared."""
    masked_spans: MaskedSpansConfig | None
    """How a denoising model masks its sources; null: it does not."""
    mask_rate: float | None
    """Share of the words that a masked language model predicts; null: the model is an encoder-decoder."""


@dataclass(frozen=True, kw_only=True)
class GeneratorInputs(Inputs[T]):
    """The frozen model, its text and its tokenizers by stream."""

    upstream: T
    encoded: T
    tokenizers: Mapping[str, T]


class NewLayersSettings(TrainSettings):
    """Training of new embedding layers before a frozen model: ``start``."""

    sides: Sides
    """Whose embeddings are replaced."""
    num_layers: int
    """Layers between a new table and the pretrained model."""


GENERATOR = StageKind(
    f"{_STAGES}.generator:train_generator", GeneratorSettings, GeneratorInputs, is_distributed=True
)
NEW_LAYERS = StageKind(
    f"{_STAGES}.independent:attach_embeddings", NewLayersSettings, TrainInputs, is_distributed=True
)
