"""Settings of one training and of what its batches hold, without torch: a study is read without it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nlgraft.nn.model_config import tupled
from nlgraft.strict_config import StrictConfig
from nlgraft.text.corpus_config import BOS, EOS
from nlgraft.training.schedules import ENDLESS, FALLING, LrSchedule


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"'{value}' is not a regular expression: {error}") from error
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression searched for in dotted parameter names, e.g. ``^fine_encoder\\.``."""


class OneOfSeveral(StrictConfig):
    """Settings of which exactly one is given; the first of them has a default, which gives way to another."""

    ONE_OF: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _default_gives_way(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = {name for name, value in values.items() if value is not None}
        for default, *others in cls.ONE_OF:
            if default not in values and given.intersection(others):
                values = {**values, default: None}
        return tupled(values)

    @model_validator(mode="after")
    def _has_one_of_each(self) -> Self:
        for names in self.ONE_OF:
            given = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None]
            if len(given) != 1:
                raise ValueError(
                    f"{' and '.join(given) or 'none'} given of {', '.join(names)}: give one, and set an "
                    "inherited one to null"
                )
        return self


class ParameterGroup(StrictConfig):
    """Parameters that learn at their own pace."""

    pattern: Pattern
    """Regular expression searched for in parameter names; one that matches nothing is an error."""
    lr_multiplier: float = Field(gt=0)
    """Factor on the learning rate at every step, e.g. 10 for TRICE's fine encoder."""


class LearnedParameters(StrictConfig):
    """Which parameters of a model learn, and how fast."""

    only: tuple[Pattern, ...] = ()
    """If given, only parameters whose names one of these patterns matches learn."""
    frozen: tuple[Pattern, ...] = ()
    """Parameters whose names one of these patterns matches do not learn."""
    groups: tuple[ParameterGroup, ...] = ()
    """Own learning rates; the first group that matches a name counts."""


ALL_LEARNED = LearnedParameters()
"""Every parameter that the model itself does not freeze."""
HIGHER_IS_BETTER = ("greedy_bleu", "accuracy", "macro_f1", "mcc")
"""Names, after any prefix, of the dev metrics that are maximised; others are minimised."""
SmoothingKind = Literal["uniform_all", "uniform_others"]


class TrainConfig(OneOfSeveral):
    """One training stage: how long, how fast, what is kept."""

    ONE_OF: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("max_steps", "max_epochs"),
        ("batch_tokens", "batch_characters", "batch_sentences"),
    )

    max_steps: int | None = Field(default=10_000, ge=1)
    """Optimiser steps; null where ``max_epochs`` is given."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Passes over the training text instead: as many batches as the first epoch has, times this."""
    batch_tokens: int | None = Field(default=4096, ge=1)
    """Tokens, padding included, of a batch on its longest side; a step takes ``accumulation`` batches. Null
    where one of the next two is given."""
    batch_characters: int | None = Field(default=None, ge=1)
    """Characters, padding included, of a batch on its longest side, over all sources and the target of the
    corpus, read or not, cut or not: the same seed gives the same batches whatever the vocabulary."""
    batch_sentences: int | None = Field(default=None, ge=1)
    """Examples of a batch, of similar length in characters: the same seed gives the same batches, too."""
    accumulation: int = Field(default=1, ge=1)
    """Batches whose gradients are added before a step; the gradient is that of one batch of their size."""

    peak_lr: float = Field(default=5e-4, gt=0)
    """Learning rate at the end of warm-up."""
    lr_schedule: LrSchedule = "inverse_sqrt"
    """Fall of the learning rate after warm-up; formulas in ``nlgraft.training.schedules``."""
    warmup_steps: int = Field(default=400, ge=0)
    """Steps over which the learning rate rises linearly to its peak."""
    initial_lr: float = Field(default=0.0, ge=0)
    """Learning rate from which warm-up rises."""
    final_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Fraction of the peak at which schedules that fall to the last step end (linear, cosine)."""
    optimizer: Literal["adamw", "nesterov"] = "adamw"
    """AdamW (Loshchilov and Hutter 2019), or descent with Nesterov's momentum (Sutskever et al. 2013), 0.99
    as for the language models of Edunov et al. 2019."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's decay of the two moments."""
    epsilon: float = Field(default=1e-8, gt=0)
    """AdamW's term in the denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled decay of weight matrices and tables (not of biases and norms)."""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest norm of the whole gradient; null for no clipping."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: forward pass in bfloat16 where torch's autocast allows it; weights and moments stay fp32."""

    eval_every_steps: int = Field(default=500, ge=1)
    """Steps between evaluations on dev; the last step is always evaluated."""
    is_evaluated_at_start: bool = False
    """If true, evaluate before the first step, e.g. to see the effect of a transfer before any training."""
    best_metric: str = "dev/loss"
    """Dev metric that tells the best evaluation, for the result and for ``patience``."""
    patience: int | None = Field(default=None, ge=1)
    """Evaluations without a new best after which training ends; null: train to ``max_steps``."""
    average_last: int | None = Field(default=None, ge=1)
    """The result is the mean of the weights at this many last evaluation points; 1: the last weights; null:
    those of the best evaluation."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> TrainConfig:
        falls_to_end = self.lr_schedule in FALLING
        if self.final_lr_ratio and not falls_to_end:
            raise ValueError(
                f"final_lr_ratio={self.final_lr_ratio} means nothing for lr_schedule={self.lr_schedule}; "
                f"allowed with {' and '.join(FALLING)}"
            )
        if falls_to_end and self.max_steps is not None and self.warmup_steps > self.max_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} exceeds max_steps={self.max_steps}, after which "
                f"lr_schedule={self.lr_schedule} ends"
            )
        if self.initial_lr > self.peak_lr:
            raise ValueError(f"initial_lr={self.initial_lr} exceeds peak_lr={self.peak_lr}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: each must be at least 0 and less than 1")
        self._check_optimizer()
        return self

    @property
    def is_best_kept(self) -> bool:
        """True if the weights of the best evaluation are the result."""
        return self.average_last is None

    @property
    def is_best_highest(self) -> bool:
        """True if the highest value of ``best_metric`` is the best."""
        return self.best_metric.rpartition("/")[2].endswith(HIGHER_IS_BETTER)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step learns from, about: tokens of four characters, sentences of 25 tokens."""
        batch = self.batch_tokens or (self.batch_characters or 0) // 4 or 25 * (self.batch_sentences or 0)
        return batch * self.accumulation

    def learning_rate(self, step: int) -> float:
        """Compute the learning rate of a step, counted from 1, before group multipliers.

        Source: Vaswani et al. (2017), section 5.3, with a free peak; formulas in `schedules`.
        """
        warmup = self.warmup_steps
        if step <= warmup:
            return self.initial_lr + (self.peak_lr - self.initial_lr) * step / warmup
        if self.lr_schedule in ENDLESS:
            return self.peak_lr * ENDLESS[self.lr_schedule](step, warmup)
        assert self.max_steps is not None, "the training loop turns epochs into steps"
        share = FALLING[self.lr_schedule]((step - warmup) / (self.max_steps + 1 - warmup))
        return self.peak_lr * (self.final_lr_ratio + (1 - self.final_lr_ratio) * share)

    def _check_optimizer(self) -> None:
        if self.optimizer == "adamw":
            return
        for name in ("betas", "epsilon", "weight_decay"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}={getattr(self, name)} means nothing to optimizer={self.optimizer}; leave it out"
                )

    def in_steps(self, num_batches: int) -> Self:
        """Give the same settings with ``max_steps``, for text of so many batches in its first epoch.

        Raises:
            ValidationError: So few steps contradict another setting.
        """
        if self.max_epochs is None:
            return self
        steps = math.ceil(self.max_epochs * num_batches / self.accumulation)
        return type(self)(**{**self.model_dump(), "max_epochs": None, "max_steps": steps})


class SmoothedTrainConfig(TrainConfig):
    """One training of a model that generates text, with smoothed targets."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Probability mass taken from the true token (Szegedy et al. 2016)."""
    smoothing_kind: SmoothingKind = "uniform_all"
    """Tokens that get that mass: all V, the true one too (Szegedy et al. 2016), or the V - 1 others (THUMT,
    the released code of Huang et al. 2021)."""


class Side(StrictConfig):
    """One stream of a view, and what is put around its sequences."""

    stream: str
    """Name of the stream in the encoded corpus."""
    prefix: tuple[int, ...] = ()
    """Ids before every sequence."""
    suffix: tuple[int, ...] = (EOS,)
    """Ids after every sequence, e.g. EOS, or EOS and a language id."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest sequence before these are put around it; longer ones are cut. None: any length."""


class View(StrictConfig):
    """The streams that a batch holds: sources, target and contexts."""

    sources: tuple[Side, ...] = (Side(stream="source 0"),)
    """One side per source. Of several, an example may lack some (an empty sequence)."""
    target: Side = Side(stream="target")
    """The text that is predicted, its suffix included."""
    contexts: Mapping[str, Side] = {}
    """Input of each fusion context, by the context's name."""
    target_start: int = BOS
    """Id that the decoder reads first: BOS, or a language id."""
    language: str | None = None
    """Stream with one id for each example, that of its language, in text of several languages: it follows
    the source, and the decoder reads it first instead of ``target_start`` (Liu et al. 2020, mBART)."""
    length_source: int | None = Field(default=None, ge=0)
    """Index of the source whose tokens limit the length of a hypothesis; null: the longest that an example
    has."""
    is_one_source_drawn: bool = False
    """If true, a batch holds one source per example, drawn anew each epoch with equal probability among those
    the example has (TRICE's single-source stage)."""

    @model_validator(mode="after")
    def _has_sources_to_draw_from(self) -> View:
        if self.is_one_source_drawn and len(self.sources) < 2:
            raise ValueError("is_one_source_drawn needs at least two sources in the view")
        if self.length_source is not None and self.length_source >= len(self.sources):
            raise ValueError(
                f"length_source is {self.length_source}, the view has {len(self.sources)} sources"
            )
        return self

    def sides(self) -> list[Side]:
        """List the sides: sources, contexts, target last."""
        return [*self.sources, *self.contexts.values(), self.target]


class MaskingConfig(StrictConfig):
    """Tokens of a line that a masked language model learns to predict, and what it reads there."""

    unit: Literal["word", "token"] = "word"
    """Whole words, as spaces separate them; or single tokens (Devlin et al. 2019)."""
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the units of a line that are predicted, at least one."""
    masked: float = Field(default=0.8, ge=0, le=1)
    """Share of their tokens that are replaced by the mask."""
    replaced: float = Field(default=0.1, ge=0, le=1)
    """Share of their tokens that are replaced by a random token; the rest stays."""

    @model_validator(mode="after")
    def _shares_add_up(self) -> MaskingConfig:
        if self.masked + self.replaced > 1:
            raise ValueError(
                f"masked {self.masked} and replaced {self.replaced} are shares: at most 1 in all"
            )
        return self


class MaskedScoringConfig(StrictConfig):
    """Lines and units on which a masked language model is scored; all their tokens are masked."""

    unit: Literal["word", "token"] = "word"
    """As in ``MaskingConfig``; per character is scored by words alone."""
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the units of a line that are masked at once."""
    num_rounds: int = Field(default=1, ge=1)
    """Times that each line is read, each time with other units masked: 1/rate rounds cover them all."""
    num_lines: int | None = Field(default=None, ge=1)
    """First lines of a split that are scored; null: all."""
