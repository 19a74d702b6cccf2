"""The stages of a trial: which there are, what each reads and what it rests on.

Every stage is given only the settings it uses, so trials share what they have in common: all arms but
``single_run`` rest on one pretrained model, all that exchange the vocabulary on the same tokenizers and the
same encoded text, and only ``att_eg`` and ``patt_eg`` depend on the generator's settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.stages import graph as pieces
from nlgraft.stages.config import MaskedSpansConfig, PhaseConfig
from nlgraft.stages.graph import EncodedText
from nlgraft.stages.kinds.seq2seq import TrainSettings
from trainables.embedding_transfer.arms import (
    GENERATOR_KINDS,
    KEPT_METHODS,
    PRETRAINED_VOCABULARIES,
    STREAMS,
    TRAINED_METHODS,
    UNTRAINED_METHODS,
    VECTOR_METHODS,
)
from trainables.embedding_transfer.config import DEFAULT_MASK_RATES, Config
from trainables.embedding_transfer.kinds import (
    GENERATOR,
    NEW_LAYERS,
    GeneratorInputs,
    GeneratorSettings,
    NewLayersSettings,
)
from trainables.embedding_transfer.masked_lm_graph import masked_lm_graph
from trainables.embedding_transfer.upstream_checkpoint import STAGE_MODULES, checkpoint_parts

_STAGES = "trainables.embedding_transfer.stages"
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
        self.is_masked = config.upstream.objective == "masked_lm"
        self.is_text = config.upstream.objective != "translation"
        self.is_pretrained = self.method not in UNTRAINED_METHODS
        self.is_exchanged = self.method not in KEPT_METHODS
        self.sides = _both(config.transfer.sides)

    # --- text -------------------------------------------------------------------------------------------

    def corpus(self, domain: str) -> Stage:
        config = getattr(self.config.data, domain)
        if domain == "upstream" and self.is_text:
            return pieces.text(domain, config)
        return pieces.corpus(domain, config, joined_by=SOURCE_SEPARATOR)

    def tokenizers(self, domain: str) -> dict[str, Stage]:
        """The vocabularies of a domain, by stream."""
        if domain == "upstream" and self.config.upstream.checkpoint is not None:
            run = f"{_STAGES}.{STAGE_MODULES[self.config.upstream.objective]}:renumber_tokenizer"
            return dict.fromkeys(
                (SOURCE, TARGET), Stage(name="upstream_shared_tokenizer", run=run, **self._checkpoint)
            )
        read = ("upstream", "downstream") if domain == "joint" else (domain,)
        corpora = {name: self.corpus(name) for name in read}
        return pieces.tokenizers(domain, getattr(self.config.tokenizers, domain), corpora)

    def _on_exchanged_sides(self, domain: str) -> dict[str, Stage]:
        """The vocabularies of a domain on the exchanged sides, the upstream corpus's own on the others."""
        given = self.tokenizers(domain)
        return self.tokenizers("upstream") | {STREAMS[side]: given[STREAMS[side]] for side in self.sides}

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
        """Settings that both trainings of the whole model have."""
        return {
            "train": phase.train,
            "num_bleu_sentences": phase.num_bleu_sentences,
            # the tokenizer of the domain decides how its training text is segmented
            "sampling_alpha": getattr(self.config.tokenizers, domain).sampling_alpha,
        }

    @cached_property
    def upstream(self) -> Stage:
        phase = self.config.upstream
        if phase.checkpoint is not None:
            return self._upstream_checkpoint
        if self.is_masked:
            return self._masked_encoder
        settings = TrainSettings(
            **self._phase("upstream", phase),
            model=self.config.model,
            masked_spans=self._masked_spans,
            metric_prefix="upstream",
        )
        return pieces.train("upstream", self.upstream_text, settings, seed=self.upstream_seed)

    @property
    def _masked_encoder(self) -> Stage:
        phase = self.config.upstream
        return Stage(
            name="upstream",
            run=f"{_STAGES}.encoder_pretraining:pretrain_encoder",
            config={
                "train": phase.train.model_dump(mode="json"),
                "model": self.config.model.model_dump(mode="json"),
                "mask_rate": self._mask_rate,
            },
            inputs={"encoded": self.upstream_text.stage, "target_tokenizer": self.old[TARGET]},
            seed=self.upstream_seed,
            is_distributed=True,
        )

    @property
    def _upstream_checkpoint(self) -> Stage:
        parts = self._checkpoint
        parts["inputs"] = {"target_tokenizer": self.old[TARGET]}
        if self.is_masked:
            run = f"{_STAGES}.bert_checkpoint:read_encoder"
            return Stage(name="upstream", run=run, seed=self.upstream_seed, **parts)
        parts["config"]["start_id"] = self.config.upstream.start_id
        return Stage(name="upstream", run=f"{_STAGES}.checkpoint:read_checkpoint", **parts)

    @property
    def _checkpoint(self) -> dict[str, Any]:
        """What the released model is, and where it lies."""
        upstream, max_tokens = self.config.upstream, self.config.data.max_tokens
        assert upstream.checkpoint is not None
        return checkpoint_parts(
            upstream.checkpoint, upstream.revision, is_bert=self.is_masked, max_tokens=max_tokens
        )

    @property
    def _mask_rate(self) -> float:
        upstream = self.config.upstream
        return upstream.mask_rate or DEFAULT_MASK_RATES[upstream.objective]

    @property
    def _masked_spans(self) -> MaskedSpansConfig | None:
        if self.config.upstream.objective != "denoising":
            return None
        return MaskedSpansConfig(rate=self._mask_rate, mean_tokens=self.config.upstream.mean_span_tokens)

    @cached_property
    def generator(self) -> Stage:
        config, transfer = self.config.generator, self.config.transfer
        if self.is_masked:
            # a masked language model has one sequence and one table, whoever gets the generated rows
            rates = {"decoder": config.encoder_rates}
        else:
            rates = {side: getattr(config, f"{side}_rates") for side in self.sides}
        settings = GeneratorSettings(
            kind=GENERATOR_KINDS[self.method],
            sides="decoder" if self.is_masked else transfer.sides,
            rates=rates,
            train=config.train_config(self.config.upstream.train),
            cap=transfer.cap,
            order=transfer.order,
            scale=config.scale,
            init=config.init,
            distillation_lambda=config.distillation_lambda,
            distillation_reduction=config.distillation_reduction,
            distillation_align=config.distillation_align,
            num_dev_sentences=config.num_dev_sentences,
            masked_spans=self._masked_spans,
            mask_rate=self._mask_rate if self.is_masked else None,
        )
        inputs = GeneratorInputs(
            upstream=self.upstream, encoded=self.upstream_text.stage, tokenizers=self.old
        )
        seed = self.seed if config.is_per_seed else self.config.upstream.seed
        return GENERATOR.stage("generator", settings, inputs, seed=seed)

    def vectors(self, age: str) -> Stage:
        """Vectors of the new tokens from downstream text, or of the old ones from upstream text."""
        is_new = age == "new"
        domain, text = ("downstream", self.downstream_text) if is_new else ("upstream", self.upstream_text)
        kind = VECTOR_METHODS[self.method][0]
        config = self.config.vectors.model_dump(mode="json")
        config |= {"kind": kind, "width": self.config.model.d_model, "sides": self.config.transfer.sides}
        return Stage(
            name=f"{domain}_{kind}_vectors",
            run=f"{_STAGES}.vectors:learn_vectors_of_sides",
            config=config,
            inputs={"encoded": text.stage},
            # like the pretrained model, what is learned upstream serves every replicate
            seed=self.seed if is_new else self.config.upstream.seed,
        )

    @cached_property
    def independent(self) -> Stage:
        """A pretrained model with new embedding layers, which have learned while it was frozen."""
        config = self.config.independent
        settings = NewLayersSettings(
            train=config.train,
            metric_prefix="independent",
            sides=self.config.transfer.sides,
            num_layers=config.num_layers,
        )
        inputs = pieces.train_inputs(self.downstream_text, start=self.upstream)
        return NEW_LAYERS.stage("independent", settings, inputs, seed=self.seed)

    @cached_property
    def transfer(self) -> Stage:
        transfer = self.config.transfer
        config: dict[str, Any] = transfer.model_dump(mode="json", exclude={"new_rows_first_steps"})
        inputs = {"upstream": self.upstream}
        for age, tokenizers in (("old", self.old), ("new", self.new)):
            inputs[f"{age}_source_tokenizer"] = tokenizers[SOURCE]
            inputs[f"{age}_target_tokenizer"] = tokenizers[TARGET]
        if self.method not in GENERATOR_KINDS:
            del config["cap"], config["order"]
        elif transfer.order == "frequency":
            inputs["upstream_encoded"] = self.upstream_text.stage
        if self.method in TRAINED_METHODS:
            inputs["generator"] = self.generator
        if self.method in VECTOR_METHODS:
            inputs |= {f"{age}_vectors": self.vectors(age) for age in VECTOR_METHODS[self.method][1]}
        run = f"{_STAGES}.transfer:exchange_vocabulary"
        return Stage(name="transfer", run=run, config=config, inputs=inputs, seed=self.seed)

    @property
    def start(self) -> Stage | None:
        """The model that is finetuned; None: a fresh one."""
        if not self.is_pretrained:
            return None
        if not self.is_exchanged:
            return self.upstream
        return self.independent if self.method == "independent_encoder" else self.transfer

    @cached_property
    def finetuned(self) -> Stage:
        upstream, transfer = self.config.upstream, self.config.transfer
        has_new_rows = self.is_exchanged and self.method != "independent_encoder"
        is_sized_by_checkpoint = self.is_masked and upstream.checkpoint is not None
        architecture = None
        if not self.is_pretrained and is_sized_by_checkpoint:
            run = f"{_STAGES}.bert_checkpoint:read_architecture"
            architecture = Stage(name="checkpoint_architecture", run=run, **self._checkpoint)
        settings = TrainSettings(
            **self._phase("downstream", self.config.downstream),
            model=None if self.is_pretrained or architecture else self.config.model,
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
        """The last stage: everything a trial is judged by."""
        further = {}
        if self.is_pretrained and not self.is_text:
            further["upstream"] = pieces.upstream_scores(
                self.upstream, self.upstream_text, decode=self.config.decode
            )
        return pieces.scores(
            self.finetuned,
            self.downstream_text,
            splits,
            decode=self.config.decode,
            score=self.config.score,
            compared_tokenizer=self.tokenizers("upstream")[TARGET] if self.is_pretrained else None,
            further=further,
        )


def _both(sides: str) -> tuple[str, ...]:
    return ("encoder", "decoder") if sides == "both" else (sides,)
