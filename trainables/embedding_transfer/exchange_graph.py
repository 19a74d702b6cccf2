"""Stages that exchange the vocabulary of a pretrained model; without torch.

Encoder-decoders and masked language models share them: vectors, generators, plans, exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field

from nlgraft.pipeline.stage import Stage
from nlgraft.stages.config_parts import MaskedSpansConfig
from nlgraft.stages.exchange_kinds import (
    EXCHANGE,
    PLAN,
    VECTORS,
    ExchangeInputs,
    PlanInputs,
    PlanSettings,
    VectorInputs,
    VectorSettings,
)
from nlgraft.stages.seq2seq_graph import TrainInputs, TrainSettings
from nlgraft.stages.stage_kind import Inputs, NoSettings, StageKind, T
from nlgraft.stages.training_settings import TrainingSettings
from nlgraft.training.train_config import MaskingConfig, SmoothedTrainConfig, View
from trainables.embedding_transfer.config import (
    CUT_EDGES,
    GENERATOR_KINDS,
    NEW_MASK_RATE,
    PRODUCERS,
    STREAMS,
    TRAINED_METHODS,
    VECTOR_METHODS,
    Config,
    SegmentationRates,
)


@dataclass(frozen=True, kw_only=True)
class VocabularyExchange:
    """An exchange of the vocabulary on one or both sides.

    Attributes:
        config: Of the trial.
        seed: Of the trial.
        model: The pretrained model.
        old: Its tokenizer of each exchanged side.
        new: The new tokenizer of each exchanged side.
        old_text: Upstream text in the old vocabularies.
        new_text: Downstream text in the new ones.
        streams: Stream of upstream text that each side reads, exchanged or not.
        learner: Model in which generators are trained, if not ``model``: the masked language model from which
            it was initialised.
        masking: What a masked language model predicts; None for encoder-decoders.
        masked_spans: Masked spans in the sources of a denoising model.
        view: What is put around the lines of a model that reads their language; None for others.
    """

    config: Config
    seed: int
    model: Stage
    old: Mapping[str, Stage]
    new: Mapping[str, Stage]
    old_text: Stage
    new_text: Stage
    streams: Mapping[str, str]
    learner: Stage | None = None
    masking: MaskingConfig | None = None
    masked_spans: MaskedSpansConfig | None = None
    view: View | None = None

    @property
    def _upstream_seed(self) -> int:
        return self.config.upstream.seed_of(self.seed)

    @cached_property
    def generator(self) -> Stage:
        """The generators; they do not depend on the new vocabularies, so cells that vary these share them."""
        config, transfer = self.config.generator, self.config.transfer
        is_masked = self.masking is not None
        # a masked language model has one sequence and one table, whoever gets the generated rows
        tokenizers = {"encoder": next(iter(self.old.values()))} if is_masked else self.old
        rates = {"encoder": config.encoder_rates, "decoder": config.decoder_rates}
        settings = GeneratorSettings(
            kind=GENERATOR_KINDS[transfer.method],
            rates={
                side: SegmentationRates(**rates[side].model_dump(), cut_edge=CUT_EDGES[side])
                for side in tokenizers
            },
            train=config.train_config(self._pretraining),
            cap=transfer.cap,
            order=transfer.order,
            scale=config.scale,
            init=config.init,
            distillation_lambda=config.distillation_lambda,
            distillation_reduction=config.distillation_reduction,
            distillation_align=config.distillation_align,
            num_dev_sentences=config.num_dev_sentences,
            masked_spans=self.masked_spans,
            masking=self.masking,
            new_mask_rate=NEW_MASK_RATE if is_masked else None,
            view=self.view,
        )
        inputs = GeneratorInputs(
            model=self.learner or self.model, encoded=self.old_text, tokenizers=tokenizers
        )
        seed = self.seed if config.is_per_seed else self._upstream_seed
        return GENERATOR.stage("generator", settings, inputs, seed=seed)

    @property
    def _pretraining(self) -> SmoothedTrainConfig:
        """Settings of the pretraining; the loss of a masked language model has no label smoothing."""
        train = self.config.upstream.train
        return train if self.config.masked_lm is None else train.model_copy(update={"label_smoothing": 0.0})

    def vectors(self, age: str) -> Stage | None:
        """Vectors of the new tokens from downstream text, or of the old ones from upstream text."""
        kind, ages = VECTOR_METHODS.get(self.config.transfer.method, ("skipgram", ()))
        if age not in ages:
            return None
        is_new = age == "new"
        tokenizers = self.new if is_new else self.old
        streams = {side: STREAMS[side] if is_new else self.streams[side] for side in tokenizers}
        return VECTORS.stage(
            f"{'downstream' if is_new else 'upstream'}_{kind}_vectors",
            VectorSettings(kind=kind, vectors=self.config.vectors, streams=streams),
            VectorInputs(
                encoded=self.new_text if is_new else self.old_text,
                tokenizers=tokenizers,
                model=self.model,
            ),
            # vectors of upstream text are shared by the same trials as the pretrained model
            seed=self.seed if is_new else self._upstream_seed,
        )

    @cached_property
    def plans(self) -> Stage:
        """Where each new row comes from."""
        transfer = self.config.transfer
        has_similar = transfer.method in GENERATOR_KINDS
        is_counted = has_similar and transfer.order == "frequency"
        settings = PlanSettings(
            method=PRODUCERS.get(transfer.method, transfer.method),
            cap=transfer.cap if has_similar else None,
            order=transfer.order if has_similar else "id",
            streams=self.streams if is_counted else {},
        )
        inputs = PlanInputs(
            model=self.model,
            old=self.old,
            new=self.new,
            new_vectors=self.vectors("new"),
            old_vectors=self.vectors("old"),
            encoded=self.old_text if is_counted else None,
        )
        if transfer.method in TRAINED_METHODS:
            generated = GeneratedPlanInputs(**vars(inputs), generator=self.generator)
            return GENERATED_PLAN.stage("transfer_plan", settings, generated, seed=self.seed)
        return PLAN.stage("transfer_plan", settings, inputs, seed=self.seed)

    @cached_property
    def transfer(self) -> Stage:
        """The model with the new vocabularies."""
        inputs = ExchangeInputs(model=self.model, plans=self.plans)
        return EXCHANGE.stage("transfer", NoSettings(), inputs)


# Settings and inputs of the paper's own stages: generator training and new embedding layers. No torch.


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


GENERATOR = StageKind(f"{_STAGES}:train_generator", GeneratorSettings, GeneratorInputs, is_distributed=True)
GENERATED_PLAN = StageKind(f"{_STAGES}:plan_by_generator", PlanSettings, GeneratedPlanInputs, version=2)
NEW_LAYERS = StageKind(f"{_STAGES}:attach_embeddings", NewLayersSettings, TrainInputs, is_distributed=True)
