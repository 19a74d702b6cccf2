"""The stages of a trial, their settings and their inputs.

Every stage is given only the settings it uses, so trials share what they have in common: all arms but
``single_run`` rest on one pretrained model, all that exchange the vocabulary on the same tokenizers and the
same encoded text, and only ``att_eg`` and ``patt_eg`` depend on the generator's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from nlgraft.nn.checkpoint_files import Reader
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.stages import masked_lm_graph as masked_pieces
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages import text_graph
from nlgraft.stages.config_parts import MASK_TOKEN, MaskedSpansConfig, PhaseConfig, VectorKind
from nlgraft.stages.masked_lm_graph import TrainMaskedSettings
from nlgraft.stages.released_graph import Released, language_view, released
from nlgraft.stages.seq2seq_graph import NEW_LAYERS, DecodingSettings, NewLayersSettings, TrainSettings
from nlgraft.stages.stage_kind import (
    SIDE,
    VECTORS,
    Inputs,
    PlanInputs,
    PlanSettings,
    StageKind,
    T,
    TrainingSettings,
    TrialStages,
    VectorInputs,
    VectorSettings,
    exchanged,
    transfer_plan,
)
from nlgraft.stages.text_graph import EncodedText
from nlgraft.text.corpus_config import EOS
from nlgraft.text.tokenizer_config import SegmentationRates
from nlgraft.training.train_config import MaskingConfig, SmoothedTrainConfig, View
from trainables.embedding_transfer.config import (
    CUT_EDGES,
    KEPT_METHODS,
    NEW_MASK_RATE,
    PRETRAINED_VOCABULARIES,
    PRODUCERS,
    SIMILAR_METHODS,
    STREAMS,
    TRAINED_METHODS,
    UNTRAINED_METHODS,
    Config,
    GeneratorKind,
)
from trainables.embedding_transfer.metrics import REPORT_STEPS

# Settings and inputs of the paper's own stages, which train and use generators. No torch.


_STAGES = "trainables.embedding_transfer.stages"


class GeneratorSettings(TrainingSettings[SmoothedTrainConfig]):
    """Training of the generators; a masked language model has a single side, called ``encoder``."""

    kind: GeneratorKind
    """Architecture of the generators."""
    rates: Mapping[str, SegmentationRates]
    """Probabilities of splits and merges, by perturbed side."""
    cap: int | None
    """Maximum number of similar tokens of a token."""
    distillation_lambda: float
    """Weight of L_d."""
    # Constants: fingerprints of stored generators hold them.
    scale: Literal["none"] = "none"
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
    # Out of the fingerprint at its default: generators are older than it.
    view: View = Field(default=View(), exclude_if=lambda view: view == View())
    """What is put around lines."""


class GeneratorInputs(Inputs[T]):
    """The frozen model, its text, and the tokenizer of each perturbed side."""

    model: T
    encoded: T
    tokenizers: Mapping[str, T]


class GeneratedPlanInputs(PlanInputs[T]):
    """Inputs of a plan, and the trained generators that make the rows."""

    generator: T


GENERATOR = StageKind(f"{_STAGES}:train_generator", GeneratorSettings, GeneratorInputs, workers="train")
GENERATED_PLAN = StageKind(f"{_STAGES}:plan_by_generator", PlanSettings, GeneratedPlanInputs, version=2)


READ_AS: dict[str, Reader] = {"translation": "marian", "denoising": "mbart", "masked_tokens": "bert"}
"""Kind of released checkpoint of each objective, unless languages are named."""
SOURCE_SEPARATOR = " | "
"""Joins several sources of an example (section 4.2: answer and passage are the input)."""
SOURCE, TARGET = STREAMS["encoder"], STREAMS["decoder"]


def stage_graph(
    config: Config,
    *,
    seed: int,
    splits: tuple[str, ...],
) -> StageGraph:
    """Build the stage graph of a trial, see ``TrialStages.graph``."""
    trial = _TranslationTrial if config.masked_lm is None else _MaskedLMTrial
    return trial.graph(config, seed=seed, splits=splits)


class _Trial(TrialStages[Config]):
    """Makes the stages of one trial, each once: here the exchange, which both kinds of model have."""

    sides: tuple[str, ...] = (SIDE,)
    view: Any = View()
    """What is put around lines."""
    masking: MaskingConfig | None = None
    """What generators predict in masked lines; None: they predict the targets of an encoder-decoder."""
    masked_spans: MaskedSpansConfig | None = None
    """Masked spans in the sources of a denoising model."""
    upstream: Any
    """The pretrained model."""
    upstream_text: Any
    """Text of both domains, encoded, by the type that each kind of model has."""
    downstream_text: Any
    old: Any
    """The vocabularies of the pretrained model, by stream."""
    new: Any
    """The vocabularies of the finetuned model, by stream."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config, seed)
        self.method = config.transfer.method
        self.upstream_seed = config.upstream.seed_of(seed)
        self.is_exchanged = self.method not in KEPT_METHODS

    def _by_side(self, tokenizers: Mapping[str, Stage]) -> dict[str, Stage]:
        return {side: tokenizers[STREAMS[side]] for side in self.sides}

    @property
    def generator(self) -> Stage:
        """The generators; they do not depend on the new vocabularies, so cells that vary these share them."""
        config, pretraining = self.config.generator, self.config.upstream.train
        if self.config.masked_lm is not None:  # its loss has no label smoothing
            pretraining = pretraining.model_copy(update={"label_smoothing": 0.0})
        # a masked language model has one sequence and one table, whoever gets the generated rows
        tokenizers = self._by_side(self.old) if self.masking is None else {SIDE: self.old[SOURCE]}
        rates = {"encoder": config.encoder_rates, "decoder": config.decoder_rates}
        settings = GeneratorSettings(
            kind=TRAINED_METHODS[self.method],
            rates={
                side: SegmentationRates(**rates[side].model_dump(), cut_edge=CUT_EDGES[side])
                for side in tokenizers
            },
            train=config.train_config(pretraining),
            cap=self.config.transfer.cap,
            distillation_lambda=config.distillation_lambda,
            num_dev_sentences=config.num_dev_sentences,
            masked_spans=self.masked_spans,
            masking=self.masking,
            new_mask_rate=None if self.masking is None else NEW_MASK_RATE,
            view=self.view,
        )
        # of an encoder-decoder that begins with a masked language model, that
        model = self.upstream.inputs.get("masked_lm", self.upstream)
        inputs = GeneratorInputs(model=model, encoded=self.upstream_text.encoded, tokenizers=tokenizers)
        # A generator belongs to the pretrained model in which it learned, and is shared as that is.
        seed = self.seed if config.is_per_seed else self.upstream_seed
        return GENERATOR.stage("generator", settings, inputs, seed=seed)

    def _vectors(self, kind: VectorKind, age: str) -> Stage:
        """Vectors of the new tokens from downstream text, or of the old ones from upstream text."""
        name, text, tokenizers, seed = "downstream", self.downstream_text, self.new, self.seed
        streams = {side: STREAMS[side] for side in self.sides}
        if age == "old":
            # shared by the same trials as the pretrained model
            name, text, tokenizers, seed = "upstream", self.upstream_text, self.old, self.upstream_seed
            if self.masking is not None:
                streams = dict.fromkeys(self.sides, SOURCE)
        return VECTORS.stage(
            f"{name}_{kind}_vectors",
            VectorSettings(kind=kind, vectors=self.config.vectors, streams=streams),
            VectorInputs(encoded=text.encoded, tokenizers=self._by_side(tokenizers), model=self.upstream),
            seed=seed,
        )

    @property
    def transfer(self) -> Stage:
        """The model with the new vocabularies."""
        method, model = self.method, self.upstream
        cap = self.config.transfer.cap if method in SIMILAR_METHODS else None
        old, new = self._by_side(self.old), self._by_side(self.new)
        if method not in TRAINED_METHODS:
            method = PRODUCERS.get(method, method)
            plans = transfer_plan(model, old, new, method, seed=self.seed, cap=cap, vectors=self._vectors)
        else:
            inputs = GeneratedPlanInputs(model=model, old=old, new=new, generator=self.generator)
            settings = PlanSettings(method=method, cap=cap)
            plans = GENERATED_PLAN.stage("transfer_plan", settings, inputs, seed=self.seed)
        return exchanged(model, plans)


class _MaskedLMTrial(_Trial):
    """A trial whose model is a masked language model."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config, seed)
        assert config.masked_lm is not None
        self.model = model = config.masked_lm
        self.masking = model.masking
        limit, dropout = config.data.max_tokens, model.upstream_dropout
        upstream, downstream = (
            text_graph.corpus(domain, getattr(config.data, domain)) for domain in ("upstream", "downstream")
        )
        tokenizer = masked_pieces.upstream_tokenizer(model, upstream)
        self.upstream_text = masked_pieces.masked_text(
            "upstream", upstream, tokenizer, max_tokens=limit, dropout=dropout
        )
        if self.is_exchanged:
            tokenizer = masked_pieces.word_tokenizer("downstream", model.downstream_tokenizer, downstream)
            dropout = model.downstream_tokenizer.dropout
        self.downstream_text = masked_pieces.masked_text(
            "downstream", downstream, tokenizer, max_tokens=limit, dropout=dropout
        )
        self.old, self.new = {SOURCE: self.upstream_text.tokenizer}, {SOURCE: tokenizer}
        self.upstream = masked_pieces.pretrained_masked_lm(
            model,
            config.upstream.train,
            self.upstream_text,
            max_tokens=limit,
            seed=self.upstream_seed,
        )

    def scores(self, splits: tuple[str, ...]) -> Stage:
        """Continue the training on downstream text; score the result."""
        model, text = self.model, self.downstream_text
        settings = TrainMaskedSettings(
            # 0 is among `REPORT_STEPS`.
            train=self.config.downstream.train.model_copy(update={"is_evaluated_at_start": False}),
            masking=model.masking,
            scoring=model.scoring,
            report_steps=REPORT_STEPS,
        )
        start = self.transfer if self.is_exchanged else self.upstream
        continued = masked_pieces.continued_masked_lm("continued", start, text, settings, seed=self.seed)
        return masked_pieces.masked_scores(continued, text, model, splits)


class _TranslationTrial(_Trial):
    """A trial whose model is an encoder-decoder."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config, seed)
        objective, sides = config.upstream.objective, config.transfer.sides
        self.is_text = objective != "translation"
        self.is_pretrained = self.method not in UNTRAINED_METHODS
        self.sides = ("encoder", "decoder") if sides == "both" else (sides,)
        self.masked_spans = MaskedSpansConfig() if objective == "denoising" else None
        self.masking = masked_pieces.TOKEN_MASKING if objective == "masked_tokens" else None
        languages = (config.upstream.languages or ()) if self.is_pretrained else ()
        # with its id, behind the mask's in all vocabularies; none if a checkpoint reads no language
        self.language_tokens = {
            f"<{name}>": EOS + 2 + place for place, name in enumerate(dict.fromkeys(languages))
        }

    # --- text -------------------------------------------------------------------------------------------

    @cached_property
    def released(self) -> Released:
        """The released checkpoint that serves as upstream model."""
        upstream, max_tokens = self.config.upstream, self.config.data.max_tokens
        assert upstream.checkpoint is not None
        read_as = "multilingual" if upstream.languages else READ_AS[upstream.objective]
        return released(upstream.checkpoint, upstream.revision, read_as=read_as, max_tokens=max_tokens)

    @cached_property
    def view(self) -> View:
        """What is put around lines: their language if the checkpoint reads it."""
        languages = self.config.upstream.languages
        if languages is None or not self.is_pretrained:
            return View()
        source, target = (self.language_tokens[f"<{name}>"] for name in languages)
        return language_view({SOURCE: source}, target, self.released.language_place)

    def corpus(self, domain: str) -> Stage:
        config = getattr(self.config.data, domain)
        if domain == "upstream" and self.is_text:
            return text_graph.text(domain, config)
        return text_graph.corpus(domain, config, joined_by=SOURCE_SEPARATOR)

    def tokenizers(self, domain: str) -> dict[str, Stage]:
        """The vocabularies of a domain, by stream."""
        if domain == "upstream" and self.config.upstream.checkpoint is not None:
            return self.released.tokenizers(tuple(self.language_tokens))
        read = ("upstream", "downstream") if domain == "joint" else (domain,)
        corpora = {name: self.corpus(name) for name in read}
        # Pretraining on text reads the mask, which finetuning never sees.
        special = (MASK_TOKEN,) if domain == "upstream" and self.is_text else ()
        if self.language_tokens:  # with the ids that they have in the checkpoint's vocabulary, renumbered
            special = (MASK_TOKEN, *self.language_tokens)
        return text_graph.tokenizers(
            domain, getattr(self.config.tokenizers, domain), corpora, special_tokens=special
        )

    def _on_exchanged_sides(self, domain: str) -> dict[str, Stage]:
        """The vocabularies of a domain on the exchanged sides, the upstream corpus's own on the others."""
        domain_tokenizers = self.tokenizers(domain)
        return self.tokenizers("upstream") | {
            STREAMS[side]: domain_tokenizers[STREAMS[side]] for side in self.sides
        }

    @cached_property
    def old(self) -> dict[str, Stage]:
        return self._on_exchanged_sides(PRETRAINED_VOCABULARIES.get(self.method, "upstream"))

    @cached_property
    def new(self) -> dict[str, Stage]:
        if self.is_exchanged:
            return self._on_exchanged_sides("downstream")
        return self.tokenizers("downstream") if self.method == "single_run" else self.old

    def _encoded(
        self,
        domain: str,
        tokenizers: Mapping[str, Stage],
        **streams: Any,
    ) -> EncodedText:
        max_tokens = self.config.data.max_tokens
        return text_graph.encode(domain, self.corpus(domain), tokenizers, max_tokens=max_tokens, **streams)

    @cached_property
    def upstream_text(self) -> EncodedText:
        if not self.is_text:
            return self._encoded("upstream", self.old)
        # An encoder alone has no target; otherwise text is its own source.
        tokenizers = self.old if self.masking is None else {SOURCE: self.old[SOURCE]}
        return self._encoded("upstream", tokenizers, streams={TARGET: SOURCE})

    @cached_property
    def downstream_text(self) -> EncodedText:
        return self._encoded("downstream", self.new)

    # --- training ---------------------------------------------------------------------------------------

    def _settings(
        self,
        domain: str,
        phase: PhaseConfig,
        **settings: Any,
    ) -> TrainSettings:
        return TrainSettings(
            train=phase.train,
            num_bleu_sentences=phase.num_bleu_sentences,
            view=self.view,
            # the tokenizer of the domain decides how its training text is segmented
            sampling_alpha=getattr(self.config.tokenizers, domain).sampling_alpha,
            **settings,
        )

    @cached_property
    def upstream(self) -> Stage:
        phase = self.config.upstream
        if self.masking is not None:
            return masked_pieces.bert2bert(
                phase.train,
                self.config.model.transformer(),
                self.upstream_text,
                seed=self.upstream_seed,
                released=self.released if phase.checkpoint else None,
            )
        if phase.checkpoint is not None:
            named = tuple(dict.fromkeys(phase.languages or ()))
            start = self.released.start_id(phase.languages[-1]) if phase.languages else phase.start_id
            return self.released.encoder_decoder("upstream", self.old[TARGET], start, named)
        settings = self._settings(
            "upstream",
            phase,
            model=self.config.model.transformer(),
            masked_spans=self.masked_spans,
            metric_prefix="upstream",
        )
        return pieces.train("upstream", self.upstream_text, settings, seed=self.upstream_seed)

    @property
    def start(self) -> Stage | None:
        """The model that is finetuned; None: a randomly initialised one."""
        if not self.is_pretrained:
            return None
        if not self.is_exchanged:
            return self.upstream
        if self.method != "independent_encoder":
            return self.transfer
        # a pretrained model with new embedding layers, which were trained while it was frozen
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

    @cached_property
    def finetuned(self) -> Stage:
        model, architecture = None, None
        if not self.is_pretrained:
            # The arm without pretraining must be as large as those that it is compared with.
            if self.masking is not None and self.config.upstream.checkpoint is not None:
                architecture = self.released.architecture()
            else:
                model = self.config.model.transformer()
        return pieces.train(
            "finetuned",
            self.downstream_text,
            self._settings("downstream", self.config.downstream, model=model),
            seed=self.seed,
            start=self.start,
            architecture=architecture,
        )

    # --- scores -----------------------------------------------------------------------------------------

    def scores(self, splits: tuple[str, ...]) -> Stage:
        """Translate and score with the finetuned model, and with the pretrained one if it translates."""
        decode, score = self.config.decode, self.config.score
        further = {}
        # A model of monolingual text translates nothing that could be scored.
        if self.is_pretrained and not self.is_text:
            further["upstream"] = pieces.upstream_scores(
                self.upstream, self.upstream_text, decode=decode, score=score, view=self.view
            )
        return pieces.scores(
            self.finetuned,
            self.downstream_text,
            splits,
            DecodingSettings(decode=decode, view=self.view, is_calibrated=score.is_calibrated),
            score,
            compared_tokenizer=self.tokenizers("upstream")[TARGET] if self.is_pretrained else None,
            further=further,
        )
