"""Settings of one training and of its batches. Imports no torch: studies are read with it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nlgraft.basics.strict_config import StrictConfig
from nlgraft.evaluation.metric_config import SCORED
from nlgraft.nn.model_config import tupled
from nlgraft.text.corpus_config import BOS, EOS


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"'{value}' is not a regular expression: {error}") from error
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression searched for in dotted parameter names, e.g. ``^fine_encoder\\.``."""


class OneOfSeveral(StrictConfig):
    """Mutually exclusive settings: exactly one of each group is set.

    The first one of a group has a default, which is dropped when another one is set.
    """

    ONE_OF: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _default_gives_way(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        names_set = {name for name, value in values.items() if value is not None}
        for default, *others in cls.ONE_OF:
            if default not in values and names_set.intersection(others):
                values = {**values, default: None}
        return tupled(values)

    def _problems(self) -> Iterator[str]:
        for names in self.ONE_OF:
            settings = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None]
            if len(settings) != 1:
                yield (
                    f"{' and '.join(settings) or 'none'} given of {', '.join(names)}: give one, and set an "
                    "inherited one to null"
                )


class LoraConfig(StrictConfig):
    """Low-rank adapters beside linear maps (Hu et al. 2022)."""

    rank: int = Field(default=8, ge=1)
    """Rank of the change of a matrix."""
    alpha: int = Field(default=16, ge=1)
    """The change is scaled by alpha over rank."""


class FinetunedPart(OneOfSeveral):
    """What is finetuned of a pretrained model whose other parameters are frozen."""

    ONE_OF = (("top_layers", "lora"),)

    top_layers: int | None = Field(default=1, ge=1)
    """The last layers of each of its stacks, whole; null where ``lora`` is given."""
    lora: LoraConfig | None = None
    """Adapters beside the linear maps of all its layers; they are added to the weights at the end."""


class ParameterGroup(StrictConfig):
    """Parameters with a learning rate of their own."""

    pattern: Pattern
    """Regular expression searched for in parameter names; one that matches nothing is an error."""
    lr_multiplier: float = Field(gt=0)
    """Factor on the learning rate at every step, e.g. 10 for TRICE's fine encoder."""
    num_frozen_steps: int = Field(default=0, ge=0)
    """Number of first steps in which these parameters do not change."""


class LearnedParameters(StrictConfig):
    """Which parameters of a model learn, and how fast."""

    only: tuple[Pattern, ...] = ()
    """Train only parameters whose names match one of these patterns; empty: all."""
    frozen: tuple[Pattern, ...] = ()
    """Freeze parameters whose names match one of these patterns."""
    groups: tuple[ParameterGroup, ...] = ()
    """Learning rates of groups of parameters; a name belongs to the first group that it matches."""
    # Left out of fingerprints where it is null: these are older.
    part: FinetunedPart | None = Field(default=None, exclude_if=lambda part: part is None)
    """If given, all of a pretrained model that learns; null: it learns whole."""
    part_of: Pattern = Field(default="", exclude_if=lambda pattern: not pattern)
    """The parameters of that pretrained model; empty: all."""


ALL_LEARNED = LearnedParameters()
"""Every parameter that the model itself does not freeze."""
HIGHER_IS_BETTER = tuple(name for name, metric in SCORED.items() if metric.direction == "maximize")
"""Ends of the names of the dev metrics that are maximised, such as ``greedy_bleu``; others are minimised."""
SmoothingKind = Literal["uniform_all", "uniform_others"]
PRECISION_INPUT = "precision"
"""Input of a training stage whose precision is measured."""


class TrainConfig(OneOfSeveral):
    """One training stage: how long, how fast, what is kept."""

    ONE_OF = (
        ("max_steps", "max_epochs"),
        ("batch_tokens", "batch_characters", "batch_sentences"),
    )

    max_steps: int | None = Field(default=10_000, ge=1)
    """Optimiser steps; null where ``max_epochs`` is given."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Length in passes over the training text, instead of ``max_steps``: the number of batches of the first
    epoch, times this."""
    batch_tokens: int | None = Field(default=4096, ge=1)
    """Tokens of a batch on its longest side, padding included; a step takes ``accumulation`` batches. Null
    where another of the three batch sizes is set."""
    batch_characters: int | None = Field(default=None, ge=1)
    """Characters of a batch on its longest side, padding included, counted on the whole lines of all sources
    and the target. Such batches do not depend on the vocabulary: the same seed gives the same examples in the
    same order."""
    batch_sentences: int | None = Field(default=None, ge=1)
    """Examples of a batch, of similar length in characters; likewise independent of the vocabulary."""
    accumulation: int = Field(default=1, ge=1)
    """Batches whose gradients are summed before a step; the step is that of one batch of their joint size."""

    peak_lr: float = Field(default=5e-4, gt=0)
    """Learning rate at the end of warm-up."""
    lr_schedule: LrSchedule = "inverse_sqrt"
    """Learning rate after warm-up; formulas in ``nlgraft.training.train_config``."""
    warmup_steps: int = Field(default=400, ge=0)
    """Steps over which the learning rate rises linearly to its peak."""
    initial_lr: float = Field(default=0.0, ge=0)
    """Learning rate from which warm-up rises."""
    final_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Fraction of the peak at which schedules that fall to the last step end (linear, cosine)."""
    optimizer: Literal["adamw", "nesterov"] = "adamw"
    """AdamW (Loshchilov and Hutter 2019), or gradient descent with Nesterov momentum (Sutskever et al. 2013)
    of 0.99, with which Edunov et al. (2019) train their language models."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW: decay rates of the two moments."""
    epsilon: float = Field(default=1e-8, gt=0)
    """AdamW: constant added to the denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW: decoupled weight decay of matrices and embedding tables; biases and norms have none."""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest norm of the gradient over all parameters; larger ones are scaled down. Null: no clipping."""

    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """bf16: the forward pass runs in bfloat16 where torch's autocast allows it; weights and moments stay in
    fp32. auto: bf16 where a measurement of less than a second finds it at least 1.2 times as fast. It is made
    once for a store, by a stage that all such trainings read, so that all arms have the same precision."""

    activation_checkpointing: bool = Field(default=False, exclude_if=lambda is_on: not is_on)
    """If true, keep only the inputs of each layer for the gradient and compute the layer once more then (Chen
    et al. 2016): far less memory, a third more time, the same results."""

    compile: bool = Field(default=False, exclude_if=lambda is_on: not is_on)
    """If true, layers are compiled by ``torch.compile``, once for all lengths and for training and evaluation
    each, which takes up to a minute and needs a C++ compiler. Results differ by rounding."""

    eval_every_steps: int = Field(default=500, ge=1)
    """Steps between evaluations on dev; the last step is always evaluated."""
    is_evaluated_at_start: bool = False
    """If true, evaluate before the first step, e.g. to see the effect of a transfer before any training."""
    best_metric: str = "dev/loss"
    """Dev metric by which the best evaluation is chosen, for the result and for ``patience``."""
    patience: int | None = Field(default=None, ge=1)
    """Evaluations without a new best after which training ends; null: train to ``max_steps``."""
    average_last: int | None = Field(default=None, ge=1)
    """Checkpoint averaging (Vaswani et al. 2017, section 6.1): the result is the mean of the weights at this
    many last evaluations, that before the first step left out; 1: the last weights; null: the weights of the
    best evaluation."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        falls_to_end = self.lr_schedule in FALLING
        if self.final_lr_ratio and not falls_to_end:
            yield (
                f"final_lr_ratio={self.final_lr_ratio} has no effect with lr_schedule={self.lr_schedule}; "
                f"allowed with {' and '.join(FALLING)}"
            )
        if falls_to_end and self.max_steps is not None and self.warmup_steps > self.max_steps:
            yield (
                f"warmup_steps={self.warmup_steps} exceeds max_steps={self.max_steps}, after which "
                f"lr_schedule={self.lr_schedule} ends"
            )
        if self.initial_lr > self.peak_lr:
            yield f"initial_lr={self.initial_lr} exceeds peak_lr={self.peak_lr}"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"betas={list(self.betas)}: each must be at least 0 and less than 1"
        if self.optimizer != "adamw":
            for name in ("betas", "epsilon", "weight_decay"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    yield (
                        f"{name}={getattr(self, name)} has no effect with optimizer={self.optimizer}; "
                        "leave it out"
                    )

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
        """Tokens per step; estimated for other budgets: 4 characters per token, 25 tokens per sentence."""
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
        # T + 1, so that the last step still has a positive rate.
        share = FALLING[self.lr_schedule]((step - warmup) / (self.max_steps + 1 - warmup))
        return self.peak_lr * (self.final_lr_ratio + (1 - self.final_lr_ratio) * share)

    def in_steps(self, num_batches: int) -> Self:
        """Replace ``max_epochs`` by ``max_steps``, for text of ``num_batches`` batches in its first epoch.

        Raises:
            ValidationError: The number of steps contradicts another setting.
        """
        if self.max_epochs is None:
            return self
        steps = math.ceil(self.max_epochs * num_batches / self.accumulation)
        # Where a model is not the trial's result, best_metric has another name than the one that is checked.
        settings = self.model_dump(exclude={"best_metric"}) | {"max_epochs": None, "max_steps": steps}
        return type(self)(**settings).model_copy(update={"best_metric": self.best_metric})


class SmoothedTrainConfig(TrainConfig):
    """One training of a model that generates text, with smoothed targets."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Probability mass taken from the true token (Szegedy et al. 2016)."""
    smoothing_kind: SmoothingKind = "uniform_all"
    """Tokens that share this mass: all V including the true one (Szegedy et al. 2016), or the V - 1 others
    (THUMT, the released code of Huang et al. 2021)."""


class Side(StrictConfig):
    """One stream of a view, and the ids added to its sequences."""

    stream: str
    """Name of the stream in the encoded corpus."""
    prefix: tuple[int, ...] = ()
    """Ids before every sequence."""
    suffix: tuple[int, ...] = (EOS,)
    """Ids after every sequence, e.g. EOS, or EOS and a language id."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest sequence, without prefix and suffix; longer ones are truncated. None: no limit."""


class View(StrictConfig):
    """The streams that a batch holds: sources, target and contexts."""

    sources: tuple[Side, ...] = (Side(stream="source 0"),)
    """One side per source. With several sources, an example may lack some; their sequences are empty."""
    target: Side = Side(stream="target")
    """The text that is predicted, its suffix included."""
    contexts: Mapping[str, Side] = {}
    """Input of each fusion context, by the context's name."""
    target_start: int = BOS
    """First input of the decoder: the id of BOS or of a language."""
    language: str | None = None
    """Multilingual text: name of the stream that holds each example's language id. The id follows the source,
    and the decoder reads it first instead of ``target_start`` (mBART, Liu et al. 2020)."""
    length_source: int | None = Field(default=None, ge=0)
    """Index of the source whose length limits the hypothesis; null: the longest source of the example."""
    is_one_source_drawn: bool = False
    """If true, a batch holds one source per example, sampled anew in each epoch, uniformly from the sources
    that the example has (TRICE's single-source stage)."""

    def _problems(self) -> Iterator[str]:
        if self.is_one_source_drawn and len(self.sources) < 2:
            yield "is_one_source_drawn needs at least two sources in the view"
        if self.length_source is not None and self.length_source >= len(self.sources):
            yield (f"length_source is {self.length_source}, the view has {len(self.sources)} sources")

    def sides(self) -> list[Side]:
        """List the sides: sources, contexts, target last."""
        return [*self.sources, *self.contexts.values(), self.target]


class MaskingConfig(StrictConfig):
    """Masking of a masked language model's input (Devlin et al. 2019, section 3.1)."""

    unit: Literal["word", "token"] = "word"
    """Mask whole words, as separated by white space, or single tokens."""
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the words (or tokens) of a line that are predicted; at least one is."""
    masked: float = Field(default=0.8, ge=0, le=1)
    """Share of the predicted tokens that the mask token replaces."""
    replaced: float = Field(default=0.1, ge=0, le=1)
    """Share of the predicted tokens that a random token replaces; the rest is left unchanged."""

    def _problems(self) -> Iterator[str]:
        if self.masked + self.replaced > 1:
            yield (f"masked {self.masked} and replaced {self.replaced} are shares: at most 1 in all")


class MaskedScoringConfig(StrictConfig):
    """Scoring of a masked language model: lines and masked words, all of whose tokens are masked."""

    unit: Literal["word", "token"] = "word"
    """Mask whole words or single tokens; only with words is there a loss per character."""
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the words (or tokens) of a line that are masked in one pass."""
    num_rounds: int = Field(default=1, ge=1)
    """Passes over each line, each with other words masked: 1/rate passes cover all of them."""
    num_lines: int | None = Field(default=None, ge=1)
    """Number of lines that are scored, from the start of a split; null: all."""


# Learning-rate schedules as exact formulas. No torch here: configs name them.
#
# Steps t count from 1; the rate of step t is the one its update uses. With w warm-up steps, peak p, initial
# rate i, T steps in all and final ratio f:
#
# warm-up       t <= w     i + (p - i) * t / w
# inverse_sqrt  t > w      p * sqrt(w / t)                                 (w = 0 counts as w = 1)
# constant      t > w      p
# linear        t > w      p * (f + (1 - f) * (1 - s))                     s = (t - w) / (T + 1 - w)
# cosine        t > w      p * (f + (1 - f) * (1 + cos(pi * s)) / 2)
#
# s would reach 1 at step T + 1, so the last step still has a positive rate.


LrSchedule = Literal["inverse_sqrt", "linear", "cosine", "constant"]

ENDLESS: Mapping[LrSchedule, Callable[[int, int], float]] = {
    "inverse_sqrt": lambda step, warmup: math.sqrt(max(warmup, 1) / step),
    "constant": lambda step, warmup: 1.0,
}
"""Share of the peak at step t after w warm-up steps, of schedules that know no last step."""
FALLING: Mapping[LrSchedule, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}
"""Share of the way between final and peak rate at progress s, of schedules that end at the last step."""
