"""The stages of a trial whose model is a masked language model.

corpora -> vocabularies -> encoded text -> upstream training -> generator -> transfer -> continued training ->
scores. As everywhere, a stage is given only what it uses: all arms and seeds share the upstream model and the
new vocabulary, arms without a trained generator know nothing of its settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.text.config import WordTokenizerConfig, digest
from trainables.embedding_transfer.arms import GENERATOR_KINDS, TRAINED_METHODS, VECTOR_METHODS
from trainables.embedding_transfer.config import Config
from trainables.embedding_transfer.masked_lm_config import (
    REPORT_STEPS,
    MaskedLMConfig,
    pinned_checkpoint,
)

_STAGES = "trainables.embedding_transfer.stages"


def masked_lm_graph(config: Config, *, seed: int, splits: Sequence[str]) -> StageGraph:
    """Build the stage graph of a trial.

    Args:
        config: With a ``masked_lm`` part.
        seed: Of the continued training and of rows drawn at random; of upstream training and the generator
            too where the config says is_per_seed.
        splits: Splits of the downstream corpus to score.

    Returns:
        The graph; its result holds the losses of every split.

    Raises:
        DataError: A corpus or a file of the checkpoint is missing.
    """
    return StageGraph(_Builder(config, seed).scores(splits))


class _Builder:
    """Makes the stages of one trial, each once."""

    def __init__(self, config: Config, seed: int) -> None:
        assert config.masked_lm is not None
        self.config = config
        self.masked_lm: MaskedLMConfig = config.masked_lm
        self.seed = seed
        self.method = config.transfer.method

    @property
    def is_exchanged(self) -> bool:
        return self.method != "pretrain_finetune"

    def _stage(self, name: str, run: str, **parts: Any) -> Stage:
        return Stage(name=name, run=f"{_STAGES}.{run}", **parts)

    # --- text -------------------------------------------------------------------------------------------

    def text(self, domain: str) -> Stage:
        corpus = getattr(self.config.data, domain)
        return self._stage(
            f"{domain}_text",
            "masked_lm_text:make_text",
            config=digest(corpus),
            locations={"corpus": corpus.model_dump(mode="json")},
        )

    def _learned(self, domain: str, tokenizer: WordTokenizerConfig) -> Stage:
        return self._stage(
            f"{domain}_vocabulary",
            "masked_lm_text:make_vocabulary",
            config=tokenizer.model_dump(mode="json"),
            inputs={"text": self.text(domain)},
        )

    @cached_property
    def old(self) -> Stage:
        """The vocabulary of the pretrained model."""
        if self.masked_lm.upstream_tokenizer is not None:
            return self._learned("upstream", self.masked_lm.upstream_tokenizer)
        return self._stage(
            "checkpoint_vocabulary",
            "masked_lm_text:copy_vocabulary",
            config=pinned_checkpoint(self.masked_lm),
            locations=self._locations,
        )

    @cached_property
    def new(self) -> Stage:
        """The vocabulary of the model whose training is continued."""
        if not self.is_exchanged:
            return self.old
        return self._learned("downstream", self.masked_lm.downstream_tokenizer)

    def encoded(self, domain: str, vocabulary: Stage) -> Stage:
        return self._stage(
            f"{domain}_encoded_text",
            "masked_lm_text:encode_text",
            config={"max_tokens": self.config.data.max_tokens},
            inputs={"text": self.text(domain), "vocabulary": vocabulary},
        )

    # --- training ---------------------------------------------------------------------------------------

    def _masking(self) -> dict[str, Any]:
        return self.masked_lm.masking().model_dump(mode="json")

    def _scoring(self) -> dict[str, Any]:
        return self.masked_lm.scoring().model_dump(mode="json")

    @cached_property
    def upstream(self) -> Stage:
        phase, masked_lm = self.config.upstream, self.masked_lm
        said: dict[str, Any] = {
            "train": phase.train.model_dump(mode="json"),
            "masking": self._masking(),
            "scoring": self._scoring(),
            "max_tokens": self.config.data.max_tokens,
        }
        if masked_lm.model is not None:
            said["model"] = masked_lm.model.model_dump(mode="json")
        else:
            said |= {**pinned_checkpoint(masked_lm), "is_body_trained": masked_lm.is_body_trained}
        return self._stage(
            "upstream_masked_lm",
            "masked_lm:pretrain",
            config=said,
            inputs={"encoded": self.encoded("upstream", self.old), "vocabulary": self.old},
            seed=self._upstream_seed,
            is_distributed=True,
            locations=self._locations,
        )

    @property
    def _locations(self) -> dict[str, Any]:
        """Where the checkpoint lies, if there is one."""
        checkpoint = self.masked_lm.checkpoint
        return {} if checkpoint is None else {"checkpoint": checkpoint}

    @property
    def _upstream_seed(self) -> int:
        return self.seed if self.config.upstream.is_per_seed else self.config.upstream.seed

    @cached_property
    def generator(self) -> Stage:
        config, transfer = self.config.generator, self.config.transfer
        said: dict[str, Any] = {
            "kind": GENERATOR_KINDS[self.method],
            "cap": transfer.cap,
            "order": transfer.order,
            "scale": config.scale,
            "init": config.init,
            "distillation_lambda": config.distillation_lambda,
            "distillation_reduction": config.distillation_reduction,
            "perturbation": config.encoder_rates.model_dump(mode="json"),
            "masking": self._masking(),
            "new_mask_rate": self.masked_lm.new_mask_rate,
            "num_dev_sentences": config.num_dev_sentences,
            "train": config.train_config(self.config.upstream.train).model_dump(mode="json"),
        }
        return self._stage(
            "masked_lm_generator",
            "masked_lm_generator:train_generator",
            config=said,
            inputs={
                "upstream": self.upstream,
                "encoded": self.encoded("upstream", self.old),
                "vocabulary": self.old,
            },
            seed=self.seed if config.is_per_seed else self._upstream_seed,
            is_distributed=True,
        )

    def vectors(self, age: str) -> Stage:
        """Vectors of the new tokens from downstream text, or of the old ones from upstream text."""
        domain, vocabulary = ("downstream", self.new) if age == "new" else ("upstream", self.old)
        said = self.config.vectors.model_dump(mode="json") | {"kind": VECTOR_METHODS[self.method][0]}
        return self._stage(
            f"{domain}_token_vectors",
            "masked_lm_transfer:learn_token_vectors",
            config=said,
            inputs={
                "encoded": self.encoded(domain, vocabulary),
                "vocabulary": vocabulary,
                "upstream": self.upstream,  # its width
            },
            seed=self.seed if age == "new" else self._upstream_seed,
        )

    @cached_property
    def start(self) -> Stage:
        """The model whose training is continued."""
        if not self.is_exchanged:
            return self.upstream
        said = self.config.transfer.model_dump(mode="json", exclude={"sides", "new_rows_first_steps"})
        inputs = {"upstream": self.upstream, "old_vocabulary": self.old, "new_vocabulary": self.new}
        if self.method not in GENERATOR_KINDS:
            del said["cap"], said["order"]
        elif self.config.transfer.order == "frequency":
            inputs["upstream_encoded"] = self.encoded("upstream", self.old)
        if self.method in TRAINED_METHODS:
            inputs["generator"] = self.generator
        if self.method in VECTOR_METHODS:
            inputs |= {f"{age}_vectors": self.vectors(age) for age in VECTOR_METHODS[self.method][1]}
        return self._stage(
            "masked_lm_transfer",
            "masked_lm_transfer:exchange",
            config=said,
            inputs=inputs,
            seed=self.seed,
            version=2,  # WordPiece: punctuation found whatever stands before it
        )

    @cached_property
    def continued(self) -> Stage:
        """The model after some training on downstream text, scored on dev as it goes."""
        said: dict[str, Any] = {
            "train": self.config.downstream.train.model_dump(mode="json"),
            "masking": self._masking(),
            "scoring": self._scoring(),
            "report_steps": list(REPORT_STEPS),
        }
        if self.is_exchanged and (steps := self.config.transfer.new_rows_first_steps):
            said["new_rows_first_steps"] = steps
        return self._stage(
            "continued_masked_lm",
            "masked_lm:continue_training",
            config=said,
            inputs={
                "start": self.start,
                "encoded": self.encoded("downstream", self.new),
                "vocabulary": self.new,
            },
            seed=self.seed,
            is_distributed=True,
        )

    def scores(self, splits: Sequence[str]) -> Stage:
        """The last stage: everything a trial is judged by."""
        return self._stage(
            "masked_lm_scores",
            "masked_lm:score",
            config={"splits": list(splits), "scoring": self._scoring()},
            inputs={
                "model": self.continued,
                "encoded": self.encoded("downstream", self.new),
                "vocabulary": self.new,
            },
        )
