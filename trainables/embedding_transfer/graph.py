"""The stages of a trial, their settings and their inputs.

Every stage is given only the settings it uses, so trials share what they have in common: all arms but
``single_run`` rest on one pretrained model, all that exchange the vocabulary on the same tokenizers and the
same encoded text, and only ``att_eg`` and ``patt_eg`` depend on the generator's settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from nlgraft.nn.checkpoint_files import Reader
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.stages import masked_lm_graph as masked_pieces
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages.config_parts import MASK_TOKEN, MaskedSpansConfig, PhaseConfig
from nlgraft.stages.masked_lm_graph import (
    BERT2BERT,
    TRAIN_MASKED,
    Bert2BertInputs,
    Bert2BertSettings,
    TrainMaskedSettings,
)
from nlgraft.stages.released_graph import MarianSide, Released, language_view, released
from nlgraft.stages.seq2seq_graph import DecodingSettings, EncodedText, TrainInputs, TrainSettings
from nlgraft.stages.shared_kinds import (
    EXCHANGE,
    PLAN,
    VECTORS,
    ExchangeInputs,
    PlanInputs,
    PlanSettings,
    TrainingSettings,
    TrainLanguageModelInputs,
    VectorInputs,
    VectorSettings,
)
from nlgraft.stages.stage_kind import Inputs, NoSettings, StageKind, T
from nlgraft.text.corpus_config import EOS
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig, SmoothedTrainConfig, View
from trainables.embedding_transfer.config import (
    CUT_EDGES,
    KEPT_METHODS,
    MASK_RATES,
    NEW_MASK_RATE,
    PRETRAINED_VOCABULARIES,
    PRODUCERS,
    SIMILAR_METHODS,
    STREAMS,
    TRAINED_METHODS,
    UNTRAINED_METHODS,
    VECTOR_METHODS,
    Config,
    SegmentationRates,
)
from trainables.embedding_transfer.metrics import REPORT_STEPS

# Settings and inputs of the paper's own stages: generator training and new embedding layers. No torch.


_STAGES = "trainables.embedding_transfer.stages"


class GeneratorSettings(TrainingSettings[SmoothedTrainConfig]):
    """Training of the generators; a masked language model has a single side, called ``encoder``."""

    kind: Literal["att", "patt"]
    """Architecture of the generators."""
    rates: Mapping[str, SegmentationRates]
    """Probabilities of splits and merges, by perturbed side."""
    cap: int | None
    """Maximum number of similar tokens of a token."""
    scale: Literal["none", "inv_size"]
    """Factor on generated rows."""
    distillation_lambda: float
    """Weight of L_d."""
    # Constants: fingerprints of stored generators hold them.
    order: Literal["id"] = "id"
    init: Literal["zeros"] = "zeros"
    distillation_reduction: Literal["sum_dim"] = "sum_dim"
    distillation_align: Literal["input"] = "input"
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


class GeneratorInputs(Inputs[T]):
    """The frozen model, its text, and the tokenizer of each perturbed side."""

    model: T
    encoded: T
    tokenizers: Mapping[str, T]


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


# Exchange of a vocabulary: encoder-decoders and masked language models share these stages.


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
            kind=TRAINED_METHODS[transfer.method],
            rates={
                side: SegmentationRates(**rates[side].model_dump(), cut_edge=CUT_EDGES[side])
                for side in tokenizers
            },
            train=config.train_config(self._pretraining),
            cap=transfer.cap,
            scale=config.scale,
            distillation_lambda=config.distillation_lambda,
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
        settings = PlanSettings(
            method=PRODUCERS.get(transfer.method, transfer.method),
            cap=transfer.cap if transfer.method in SIMILAR_METHODS else None,
        )
        inputs = PlanInputs(
            model=self.model,
            old=self.old,
            new=self.new,
            new_vectors=self.vectors("new"),
            old_vectors=self.vectors("old"),
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


# The stages of a trial whose model is a masked language model.
#
# corpora -> vocabularies -> encoded text -> upstream training -> exchange -> continued training -> scores.


def masked_lm_graph(config: Config, *, seed: int, splits: Sequence[str]) -> StageGraph:
    """Build the stage graph of a trial from a config with a ``masked_lm`` part."""
    model, transfer, limit = config.masked_lm, config.transfer, config.data.max_tokens
    assert model is not None
    corpora = {name: pieces.corpus(name, getattr(config.data, name)) for name in ("upstream", "downstream")}
    old = masked_pieces.upstream_tokenizer(model, corpora["upstream"])
    dropout = model.upstream_dropout
    old_text = masked_pieces.masked_text(
        "upstream", corpora["upstream"], old, max_tokens=limit, dropout=dropout
    )
    upstream = masked_pieces.pretrained_masked_lm(
        model, config.upstream.train, old_text, max_tokens=limit, seed=config.upstream.seed_of(seed)
    )
    is_exchanged = transfer.method != "pretrain_finetune"
    new = old
    if is_exchanged:
        tokenizer = model.downstream_tokenizer
        new = masked_pieces.word_tokenizer("downstream", tokenizer, corpora["downstream"])
        dropout = tokenizer.dropout
    new_text = masked_pieces.masked_text(
        "downstream", corpora["downstream"], new, max_tokens=limit, dropout=dropout
    )
    exchange = VocabularyExchange(
        config=config,
        seed=seed,
        model=upstream,
        old={"encoder": old},
        new={"encoder": new},
        old_text=old_text.encoded,
        new_text=new_text.encoded,
        streams={"encoder": STREAMS["encoder"]},
        masking=model.masking,
    )
    settings = TrainMaskedSettings(
        train=config.downstream.train,
        masking=model.masking,
        scoring=model.scoring,
        new_rows_first_steps=transfer.new_rows_first_steps if is_exchanged else 0,
        report_steps=REPORT_STEPS,
    )
    start = exchange.transfer if is_exchanged else upstream
    continued = masked_pieces.continued_masked_lm("continued", start, new_text, settings, seed=seed)
    return StageGraph(masked_pieces.masked_scores(continued, new_text, model, splits))


READ_AS: dict[str, Reader] = {"translation": "marian", "denoising": "mbart", "masked_tokens": "bert"}
"""Kind of released checkpoint of each objective, unless languages are named."""
SOURCE_SEPARATOR = " | "
"""Joins several sources of an example (section 4.2: answer and passage are the input)."""
SOURCE, TARGET = STREAMS["encoder"], STREAMS["decoder"]


def stage_graph(config: Config, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
    """Build the stage graph of a trial.

    Args:
        config: Everything the trial depends on.
        seed: Of the finetuning and of rows drawn at random; of the pretraining and the generator too where
            the config says is_per_seed.
        splits: Splits of the downstream corpus to translate and score.

    Returns:
        The graph; its result holds the scores of every split.

    Raises:
        DataError: A corpus or a checkpoint is missing.
    """
    if config.masked_lm is not None:
        return masked_lm_graph(config, seed=seed, splits=splits)
    return StageGraph(_Builder(config, seed).scores(splits))


class _Builder:
    """Makes the stages of one trial, each once."""

    def __init__(self, config: Config, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.method = config.transfer.method
        self.upstream_seed = config.upstream.seed_of(seed)
        self.is_masked = config.upstream.objective == "masked_tokens"
        self.is_text = config.upstream.objective != "translation"
        self.is_pretrained = self.method not in UNTRAINED_METHODS
        self.is_exchanged = self.method not in KEPT_METHODS
        sides = config.transfer.sides
        self.sides = ("encoder", "decoder") if sides == "both" else (sides,)
        rate = MASK_RATES.get(config.upstream.objective, 0.0)
        self.masked_spans = None if self.is_masked or not self.is_text else MaskedSpansConfig(rate=rate)
        # single tokens, as in Devlin et al. (2019)
        self.masking = MaskingConfig(unit="token", rate=rate) if self.is_masked else None

    # --- text -------------------------------------------------------------------------------------------

    def corpus(self, domain: str) -> Stage:
        config = getattr(self.config.data, domain)
        if domain == "upstream" and self.is_text:
            return pieces.text(domain, config)
        return pieces.corpus(domain, config, joined_by=SOURCE_SEPARATOR)

    def tokenizers(self, domain: str) -> dict[str, Stage]:
        """The vocabularies of a domain, by stream."""
        if domain == "upstream" and self.config.upstream.checkpoint is not None:
            if self.languages:
                tokens = tuple(self.language_tokens)
                shared = self.released.tokenizer("upstream_shared_tokenizer", tokens)
                return dict.fromkeys((SOURCE, TARGET), shared)
            if not self.is_text:
                sides: tuple[MarianSide, ...] = ("source", "target")
                made = [self.released.marian_tokenizer(f"upstream_{side}_tokenizer", side) for side in sides]
                return dict(zip((SOURCE, TARGET), made, strict=True))
            return dict.fromkeys((SOURCE, TARGET), self.released.tokenizer("upstream_shared_tokenizer"))
        read = ("upstream", "downstream") if domain == "joint" else (domain,)
        corpora = {name: self.corpus(name) for name in read}
        special = (MASK_TOKEN,) if domain == "upstream" and self.is_text else ()
        if self.languages:  # with the ids that they have in the checkpoint's vocabulary, renumbered
            special = (MASK_TOKEN, *self.language_tokens)
        return pieces.tokenizers(
            domain, getattr(self.config.tokenizers, domain), corpora, special_tokens=special
        )

    def _on_exchanged_sides(self, domain: str) -> dict[str, Stage]:
        """The vocabularies of a domain on the exchanged sides, the upstream corpus's own on the others."""
        domain_tokenizers = self.tokenizers(domain)
        return self.tokenizers("upstream") | {
            STREAMS[side]: domain_tokenizers[STREAMS[side]] for side in self.sides
        }

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of source and target in a checkpoint that reads them; none if the lines name none."""
        return (self.config.upstream.languages or ()) if self.is_pretrained else ()

    @property
    def language_tokens(self) -> dict[str, int]:
        """Token of each language, and its id, behind the mask's in all vocabularies."""
        return {f"<{name}>": EOS + 2 + place for place, name in enumerate(dict.fromkeys(self.languages))}

    @property
    def view(self) -> View:
        """What is put around lines."""
        if not self.languages:
            return View()
        source, target = (self.language_tokens[f"<{name}>"] for name in self.languages)
        return language_view({SOURCE: source}, target, self.released.language_place)

    @cached_property
    def old(self) -> dict[str, Stage]:
        """The vocabularies of the pretrained model."""
        domain = PRETRAINED_VOCABULARIES.get(self.method)
        return self._on_exchanged_sides(domain) if domain else self.tokenizers("upstream")

    @cached_property
    def new(self) -> dict[str, Stage]:
        """The vocabularies of the finetuned model."""
        if self.is_exchanged:
            return self._on_exchanged_sides("downstream")
        return self.tokenizers("downstream") if self.method == "single_run" else self.old

    def encoded(self, domain: str, tokenizers: Mapping[str, Stage]) -> EncodedText:
        is_text = domain == "upstream" and self.is_text
        if is_text and self.is_masked:
            tokenizers = {SOURCE: tokenizers[SOURCE]}
        return pieces.encode(
            domain,
            self.corpus(domain),
            tokenizers,
            streams={TARGET: SOURCE} if is_text else None,
            max_tokens=self.config.data.max_tokens,
        )

    @cached_property
    def upstream_text(self) -> EncodedText:
        return self.encoded("upstream", self.old)

    @cached_property
    def downstream_text(self) -> EncodedText:
        return self.encoded("downstream", self.new)

    # --- training ---------------------------------------------------------------------------------------

    def _phase(self, domain: str, phase: PhaseConfig) -> dict[str, Any]:
        """Settings common to both trainings of the whole model."""
        return {
            "train": phase.train,
            "num_bleu_sentences": phase.num_bleu_sentences,
            "view": self.view,
            # the tokenizer of the domain decides how its training text is segmented
            "sampling_alpha": getattr(self.config.tokenizers, domain).sampling_alpha,
        }

    @cached_property
    def upstream(self) -> Stage:
        phase = self.config.upstream
        if self.is_masked:
            settings = Bert2BertSettings(model=None if phase.checkpoint else self.config.model.transformer())
            inputs = Bert2BertInputs(masked_lm=self.masked_lm)
            return BERT2BERT.stage("upstream", settings, inputs, seed=self.upstream_seed)
        if phase.checkpoint is not None:
            named = tuple(dict.fromkeys(self.languages))
            start = self.released.start_id(self.languages[-1]) if named else phase.start_id
            return self.released.encoder_decoder("upstream", self.old[TARGET], start, named)
        settings = TrainSettings(
            **self._phase("upstream", phase),
            model=self.config.model.transformer(),
            masked_spans=self.masked_spans,
            metric_prefix="upstream",
        )
        return pieces.train("upstream", self.upstream_text, settings, seed=self.upstream_seed)

    @cached_property
    def masked_lm(self) -> Stage:
        """The masked language model that initialises encoder and decoder of the pretrained model."""
        name, phase = "upstream_masked_lm", self.config.upstream
        if phase.checkpoint is not None:
            return self.released.masked_lm(name, self.old[TARGET])
        assert self.masking is not None
        settings = TrainMaskedSettings(
            train=phase.train,
            label_smoothing=phase.train.label_smoothing,
            smoothing_kind=phase.train.smoothing_kind,
            masking=self.masking,
            scoring=MaskedScoringConfig(unit="token", rate=self.masking.rate),
            encoder=self.config.model.transformer(),
            metric_prefix="upstream",
        )
        text = self.upstream_text
        inputs = TrainLanguageModelInputs(encoded=text.stage, corpus=text.corpus, tokenizer=self.old[SOURCE])
        return TRAIN_MASKED.stage(name, settings, inputs, seed=self.upstream_seed)

    @cached_property
    def released(self) -> Released:
        """The released checkpoint that serves as upstream model."""
        upstream, max_tokens = self.config.upstream, self.config.data.max_tokens
        assert upstream.checkpoint is not None
        read_as = "multilingual" if upstream.languages else READ_AS[upstream.objective]
        return released(upstream.checkpoint, upstream.revision, read_as=read_as, max_tokens=max_tokens)

    @property
    def exchange(self) -> VocabularyExchange:
        """The exchange of the vocabulary on the exchanged sides."""
        streams: dict[str, str] = {"encoder": SOURCE, "decoder": SOURCE if self.is_masked else TARGET}
        return VocabularyExchange(
            config=self.config,
            seed=self.seed,
            model=self.upstream,
            learner=self.masked_lm if self.is_masked else None,
            old={side: self.old[STREAMS[side]] for side in self.sides},
            new={side: self.new[STREAMS[side]] for side in self.sides},
            old_text=self.upstream_text.stage,
            new_text=self.downstream_text.stage,
            streams=streams,
            masking=self.masking,
            masked_spans=self.masked_spans,
            view=self.view if self.languages else None,
        )

    @cached_property
    def independent(self) -> Stage:
        """A pretrained model with new embedding layers, which were trained while it was frozen."""
        config = self.config.independent
        settings = NewLayersSettings(
            train=config.train_config(self.config.downstream.train),
            metric_prefix="independent",
            view=self.view,
            sides=self.sides,
            num_layers=config.num_layers,
        )
        inputs = pieces.train_inputs(self.downstream_text, start=self.upstream)
        return NEW_LAYERS.stage("independent", settings, inputs, seed=self.seed)

    @property
    def start(self) -> Stage | None:
        """The model that is finetuned; None: a randomly initialised one."""
        if not self.is_pretrained:
            return None
        if not self.is_exchanged:
            return self.upstream
        return self.independent if self.method == "independent_encoder" else self.exchange.transfer

    @cached_property
    def finetuned(self) -> Stage:
        upstream, transfer = self.config.upstream, self.config.transfer
        has_new_rows = self.is_exchanged and self.method != "independent_encoder"
        is_sized_by_checkpoint = self.is_masked and upstream.checkpoint is not None
        architecture = None
        if not self.is_pretrained and is_sized_by_checkpoint:
            architecture = self.released.architecture("checkpoint_architecture")
        settings = TrainSettings(
            **self._phase("downstream", self.config.downstream),
            model=None if self.is_pretrained or architecture else self.config.model.transformer(),
            new_rows_first_steps=transfer.new_rows_first_steps if has_new_rows else 0,
        )
        return pieces.train(
            "finetuned",
            self.downstream_text,
            settings,
            seed=self.seed,
            start=self.start,
            architecture=architecture,
        )

    # --- scores -----------------------------------------------------------------------------------------

    def scores(self, splits: Sequence[str]) -> Stage:
        """The last stage: all scores of the trial."""
        score = self.config.score
        further = {}
        if self.is_pretrained and not self.is_text:
            further["upstream"] = pieces.upstream_scores(
                self.upstream, self.upstream_text, decode=self.config.decode, score=score, view=self.view
            )
        return pieces.scores(
            self.finetuned,
            self.downstream_text,
            splits,
            DecodingSettings(decode=self.config.decode, view=self.view, is_calibrated=score.is_calibrated),
            score,
            compared_tokenizer=self.tokenizers("upstream")[TARGET] if self.is_pretrained else None,
            further=further,
        )
