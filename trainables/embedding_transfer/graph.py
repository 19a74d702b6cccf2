"""The stages of a trial: which there are, what each reads and what it rests on.

Every stage is given only the settings it uses, so trials share what they have in common: all arms but
``single_run`` rest on one pretrained model, all that exchange the vocabulary on the same tokenizers and the
same encoded text, and only ``att_eg`` and ``patt_eg`` depend on the generator's settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.text.config import TokenizerConfig, digest
from trainables.embedding_transfer.arms import (
    GENERATOR_KINDS,
    KEPT_METHODS,
    PRETRAINED_VOCABULARIES,
    TRAINED_METHODS,
    UNTRAINED_METHODS,
    VECTOR_METHODS,
)
from trainables.embedding_transfer.config import DEFAULT_MASK_RATES, Config, PhaseConfig, ScoreConfig
from trainables.embedding_transfer.masked_lm_graph import masked_lm_graph
from trainables.embedding_transfer.upstream_checkpoint import STAGE_MODULES, checkpoint_parts

_STAGES = "trainables.embedding_transfer.stages"


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


@dataclass(frozen=True)
class _Vocabularies:
    """The tokenizer stages of a model, source and target."""

    source: Stage
    target: Stage

    @property
    def inputs(self) -> dict[str, Stage]:
        return {"source_tokenizer": self.source, "target_tokenizer": self.target}


class _Builder:
    """Makes the stages of one trial, each once."""

    def __init__(self, config: Config, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.method = config.transfer.method

    @property
    def is_pretrained(self) -> bool:
        return self.method not in UNTRAINED_METHODS

    @property
    def is_exchanged(self) -> bool:
        """Whether the vocabulary of a pretrained model is exchanged."""
        return self.method not in KEPT_METHODS

    def _stage(self, name: str, run: str, **parts: Any) -> Stage:
        return Stage(name=name, run=f"{_STAGES}.{run}", **parts)

    # --- text -------------------------------------------------------------------------------------------

    def corpus(self, domain: str) -> Stage:
        corpus = getattr(self.config.data, domain)
        is_text = domain == "upstream" and self.config.upstream.objective != "translation"
        return self._stage(
            # two names: the same corpus gives another artifact as text
            f"{domain}_corpus_as_text" if is_text else f"{domain}_corpus",
            "text:make_text" if is_text else "text:make_corpus",
            config=digest(corpus),
            locations={"corpus": corpus.model_dump(mode="json")},
        )

    def tokenizer(self, domain: str, side: str) -> Stage:
        if domain == "upstream" and self.config.upstream.checkpoint is not None:
            module = STAGE_MODULES[self.config.upstream.objective]
            return self._stage("upstream_both_tokenizer", f"{module}:renumber_tokenizer", **self._checkpoint)
        tokenizer: TokenizerConfig = getattr(self.config.tokenizers, domain)
        said = tokenizer.model_dump(mode="json", exclude={"is_shared", "sampling_alpha"})
        said["side"] = "both" if tokenizer.is_shared else side
        if domain == "joint":
            inputs = {"corpus": self.corpus("upstream"), "further_corpus": self.corpus("downstream")}
        else:
            inputs = {"corpus": self.corpus(domain)}
        return self._stage(
            f"{domain}_{said['side']}_tokenizer",
            "text:make_tokenizer",
            config=said,
            inputs=inputs,
            # a seed only where lines are drawn: without it all seeds share the model
            seed=0 if tokenizer.max_train_lines else None,
        )

    def _vocabularies(self, domain: str) -> _Vocabularies:
        return _Vocabularies(self.tokenizer(domain, "source"), self.tokenizer(domain, "target"))

    def _on_exchanged_sides(self, domain: str) -> _Vocabularies:
        """The upstream corpus's own vocabularies, those of a domain where the vocabulary is another."""
        own, given = self._vocabularies("upstream"), self._vocabularies(domain)
        sides = _both(self.config.transfer.sides)
        return _Vocabularies(
            given.source if "encoder" in sides else own.source,
            given.target if "decoder" in sides else own.target,
        )

    @cached_property
    def old(self) -> _Vocabularies:
        """The vocabularies of the pretrained model."""
        domain = PRETRAINED_VOCABULARIES.get(self.method)
        return self._on_exchanged_sides(domain) if domain else self._vocabularies("upstream")

    @cached_property
    def new(self) -> _Vocabularies:
        """The vocabularies of the finetuned model."""
        if self.is_exchanged:
            return self._on_exchanged_sides("downstream")
        return self._vocabularies("downstream") if self.method == "single_run" else self.old

    def encoded(self, domain: str, vocabularies: _Vocabularies) -> Stage:
        return self._stage(
            f"{domain}_encoded",
            "text:encode",
            config={"max_tokens": self.config.data.max_tokens},
            inputs={"corpus": self.corpus(domain), **vocabularies.inputs},
        )

    # --- training ---------------------------------------------------------------------------------------

    def _phase(self, phase: PhaseConfig, domain: str, vocabularies: _Vocabularies) -> dict[str, Any]:
        """Config and inputs that both trainings of the whole model have."""
        said: dict[str, Any] = {"train": phase.train.model_dump(mode="json")}
        inputs = {"encoded": self.encoded(domain, vocabularies)}
        # the tokenizer of the domain decides how its training text is segmented
        alpha = getattr(self.config.tokenizers, domain).sampling_alpha
        if alpha is not None:
            said |= {"sampling_alpha": alpha, "max_tokens": self.config.data.max_tokens}
        if phase.num_bleu_sentences:
            said["num_bleu_sentences"] = phase.num_bleu_sentences
        if alpha is not None or phase.num_bleu_sentences:
            inputs |= {"corpus": self.corpus(domain), **vocabularies.inputs}
        return {"config": said, "inputs": inputs}

    @cached_property
    def upstream(self) -> Stage:
        phase = self.config.upstream
        if phase.checkpoint is not None:
            parts = self._checkpoint
            parts["inputs"] = {"target_tokenizer": self.old.target}
            if self._is_masked:
                parts["seed"] = self._upstream_seed
                return self._stage("upstream", "bert_checkpoint:read_encoder", **parts)
            parts["config"]["start_id"] = phase.start_id
            return self._stage("upstream", "checkpoint:read_checkpoint", **parts)
        parts = self._phase(phase, "upstream", self.old)
        parts["config"] |= {"model": self.config.model.model_dump(mode="json"), "metric_prefix": "upstream"}
        parts["config"] |= self._holes
        if self._holes:
            parts["inputs"] |= self.old.inputs
        run = "encoder_pretraining:pretrain_encoder" if self._is_masked else "training:pretrain"
        return self._stage("upstream", run, seed=self._upstream_seed, is_distributed=True, **parts)

    @property
    def _upstream_seed(self) -> int:
        return self.seed if self.config.upstream.is_per_seed else self.config.upstream.seed

    @property
    def _checkpoint(self) -> dict[str, Any]:
        """What the released model is, and where it lies."""
        upstream, max_tokens = self.config.upstream, self.config.data.max_tokens
        assert upstream.checkpoint is not None
        return checkpoint_parts(
            upstream.checkpoint, upstream.revision, is_bert=self._is_masked, max_tokens=max_tokens
        )

    @cached_property
    def architecture(self) -> Stage:
        """What a model of the checkpoint's sizes is."""
        return self._stage("checkpoint_architecture", "bert_checkpoint:read_architecture", **self._checkpoint)

    @property
    def _is_masked(self) -> bool:
        return self.config.upstream.objective == "masked_lm"

    @property
    def _holes(self) -> dict[str, Any]:
        """What pretraining on text hides; empty for translation."""
        upstream = self.config.upstream
        if upstream.objective == "translation":
            return {}
        holes = {
            "mask_rate": upstream.mask_rate or DEFAULT_MASK_RATES[upstream.objective],
            "mean_span_tokens": upstream.mean_span_tokens,
        }
        if self._is_masked:
            del holes["mean_span_tokens"]
        return holes

    @cached_property
    def generator(self) -> Stage:
        config, upstream = self.config.generator, self.config.upstream
        sides = self.config.transfer.sides
        # a masked language model has one sequence and one table, whoever gets the generated rows
        changed = ("encoder",) if self._is_masked else _both(sides)
        unread = {
            "is_per_seed",
            *(f"{side}_rates" for side in ("encoder", "decoder") if side not in changed),
        }
        said = config.model_dump(mode="json", exclude=unread)
        said |= {
            "kind": GENERATOR_KINDS[self.method],
            "sides": "masked_lm" if self._is_masked else sides,
            "cap": self.config.transfer.cap,
            "order": self.config.transfer.order,
            "train": config.train_config(upstream.train).model_dump(mode="json"),
            **self._holes,
        }
        for used in ("max_steps", "batch_tokens", "peak_lr", "warmup_steps", "betas", "eval_every_steps"):
            del said[used]  # they are in train
        return self._stage(
            "generator",
            "generator:train_generator",
            config=said,
            inputs={
                "upstream": self.upstream,
                "encoded": self.encoded("upstream", self.old),
                **self.old.inputs,
            },
            seed=self.seed if config.is_per_seed else upstream.seed,
            is_distributed=True,
        )

    def vectors(self, age: str) -> Stage:
        """Vectors of the new tokens from downstream text, or of the old ones from upstream text."""
        domain, vocabularies = ("downstream", self.new) if age == "new" else ("upstream", self.old)
        kind = VECTOR_METHODS[self.method][0]
        said = self.config.vectors.model_dump(mode="json")
        said |= {"kind": kind, "width": self.config.model.d_model, "sides": self.config.transfer.sides}
        return self._stage(
            f"{domain}_{kind}_vectors",
            "vectors:learn_vectors_of_sides",
            config=said,
            inputs={"encoded": self.encoded(domain, vocabularies)},
            # like the pretrained model, what is learned upstream serves every replicate
            seed=self.seed if age == "new" else self.config.upstream.seed,
        )

    @cached_property
    def independent(self) -> Stage:
        """A pretrained model with new embedding layers, which have learned while it was frozen."""
        independent, sides = self.config.independent, self.config.transfer.sides
        said = independent.model_dump(mode="json") | {"sides": sides, "metric_prefix": "independent"}
        return self._stage(
            "independent",
            "independent:attach_embeddings",
            config=said,
            inputs={"upstream": self.upstream, "encoded": self.encoded("downstream", self.new)},
            seed=self.seed,
            is_distributed=True,
        )

    @cached_property
    def start(self) -> Stage:
        """The model that is finetuned."""
        if not self.is_exchanged:
            return self.upstream
        return self.independent if self.method == "independent_encoder" else self.transfer

    @cached_property
    def transfer(self) -> Stage:
        transfer = self.config.transfer
        said: dict[str, Any] = transfer.model_dump(mode="json", exclude={"new_rows_first_steps"})
        inputs = {"upstream": self.upstream}
        inputs |= {f"old_{name}": stage for name, stage in self.old.inputs.items()}
        inputs |= {f"new_{name}": stage for name, stage in self.new.inputs.items()}
        if self.method not in GENERATOR_KINDS:
            del said["cap"], said["order"]
        elif transfer.order == "frequency":
            inputs["upstream_encoded"] = self.encoded("upstream", self.old)
        if self.method in TRAINED_METHODS:
            inputs["generator"] = self.generator
        if self.method in VECTOR_METHODS:
            inputs |= {f"{age}_vectors": self.vectors(age) for age in VECTOR_METHODS[self.method][1]}
        return self._stage(
            "transfer", "transfer:exchange_vocabulary", config=said, inputs=inputs, seed=self.seed
        )

    @cached_property
    def finetuned(self) -> Stage:
        parts = self._phase(self.config.downstream, "downstream", self.new)
        parts["config"]["metric_prefix"] = ""
        has_new_rows = self.is_exchanged and self.method != "independent_encoder"
        if has_new_rows and (steps := self.config.transfer.new_rows_first_steps):
            parts["config"]["new_rows_first_steps"] = steps
        if self.is_pretrained:
            parts["inputs"]["start"] = self.start
        elif self.config.upstream.checkpoint is not None and self._is_masked:
            parts["inputs"]["architecture"] = self.architecture
        else:
            parts["config"]["model"] = self.config.model.model_dump(mode="json")
        return self._stage("finetuned", "training:finetune", seed=self.seed, is_distributed=True, **parts)

    # --- scores -----------------------------------------------------------------------------------------

    def translation(self, split: str) -> Stage:
        return self._stage(
            f"translation_{split}",
            "evaluation:translate",
            config={
                "split": split,
                "decode": self.config.decode.model_dump(mode="json"),
                **({"is_calibrated": True} if self.config.score.is_calibrated else {}),
            },
            inputs={"model": self.finetuned, "corpus": self.corpus("downstream"), **self.new.inputs},
        )

    def upstream_scores(self) -> Stage:
        decode = self.config.decode.model_dump(mode="json")
        translation = self._stage(
            "upstream_translation",
            "evaluation:translate",
            config={"split": "dev", "decode": decode, "is_timed": False},
            inputs={"model": self.upstream, "corpus": self.corpus("upstream"), **self.old.inputs},
        )
        return self._stage(
            "upstream_scores",
            "evaluation:score_upstream",
            inputs={"translation": translation, "corpus": self.corpus("upstream")},
        )

    def scores(self, splits: Sequence[str]) -> Stage:
        """The last stage: everything a trial is judged by."""
        inputs = {
            "corpus": self.corpus("downstream"),
            "finetuned": self.finetuned,
            "target_tokenizer": self.new.target,
            **{f"translation_{split}": self.translation(split) for split in splits},
        }
        if self.is_pretrained:
            inputs["upstream_target_tokenizer"] = self.tokenizer("upstream", "target")
            if not self._holes:
                inputs["upstream_scores"] = self.upstream_scores()
        said: dict[str, Any] = {"splits": list(splits)}
        if (metrics := self.config.score.metrics) != ScoreConfig().metrics:
            said["metrics"] = list(metrics)
        return self._stage("scores", "evaluation:score", config=said, inputs=inputs)


def _both(sides: str) -> tuple[str, ...]:
    return ("encoder", "decoder") if sides == "both" else (sides,)
