"""The training loop: the same function in a Tune actor, in a Ray Train worker and in a test.

**Global batches**: a step takes ``accumulation`` batches of the data, whose rows are distributed over the
workers; the gradient is that of the loss summed over all their tokens, divided by the number of these tokens.
One worker, two workers and accumulation therefore give the same curve up to rounding (without dropout).
**Resume**: killed at any moment and started again, training ends with the bits of an uninterrupted run on
the CPU.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.evaluation.scores import Score
from nlgraft.evaluation.shares import SHARE, Share
from nlgraft.nn.linear import use_fast_products
from nlgraft.nn.modes import count_parameters, forked_rng, is_accelerator
from nlgraft.pipeline.stage import StageContext, TrialStopped
from nlgraft.training.adapters import finetune_part, merge_adapters
from nlgraft.training.precision import with_precision
from nlgraft.training.seeds import derive_seed
from nlgraft.training.sharding import is_divided, layers_of, shard, wrapped
from nlgraft.training.step import (
    ObjectiveModule,
    Rows,
    RowsFirst,
    Stepper,
    Training,
    TrainingDiverged,
    Workers,
)
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, TrainConfig
from nlgraft.training.train_state import (
    Progress,
    TrainState,
    Window,
    copy_to_cpu,
    distinct_state,
    learned_state,
    optimizer_state,
    overwrite,
)
from nlgraft.training.weights import Weights, average_weights, save_model

CURVES_FILE = "curves.json"
REPORT_EVERY_STEPS = 50
"""Steps between reports of the training loss; at each the trial scheduler may stop the trial."""
_FUSED_ON = ("cpu", "cuda", "mps", "xpu")
CHECKPOINT_EVERY_STEPS = 500
"""Steps between checkpoints, from which a killed training resumes."""
Evaluate = Callable[[Any], Mapping[str, float]]


@dataclass
class TrainOutcome(Progress):
    """Result of a training: where it ended, and the size of the model.

    Attributes:
        num_parameters: Parameters of the model, tied ones counted once.
        num_trained_parameters: Those that were trained.
    """

    num_parameters: int = 0
    num_trained_parameters: int = 0

    @property
    def scores(self) -> dict[str, Score]:
        """Size of the model, amount of training and time, as scores of one segment."""
        measured = {
            "parameters/total": (self.num_parameters, "tied parameters once"),
            "parameters/trained": (self.num_trained_parameters, "tied parameters once"),
            "train_examples": (self.num_examples, "as often as they were seen"),
            "train_tokens": (self.num_tokens, "tokens whose loss was taken, as often as they were seen"),
            "train_s": (self.seconds, "seconds of training steps"),
        }
        return {name: Score(value, 1, "minimize", text) for name, (value, text) in measured.items()}


def train(
    training: Training,
    context: StageContext,
    *,
    evaluate: Evaluate | None = None,
    save: Callable[[Any, Path], None] = save_model,
    rows_first: RowsFirst | None = None,
) -> TrainOutcome:
    """Train a model, from its last checkpoint if there is one, and write it into the stage's artifact.

    Args:
        training: Model, loss, batches and settings.
        context: Seed, device, workers, checkpoints, reporter, artifact directory.
        evaluate: Dev metrics of the model, called on every worker (of a divided model on the first) with the
            model in eval mode and without gradients.
        save: Writes the model into a directory.
        rows_first: Rows that are trained alone in the first steps; None: everything from the start.

    Raises:
        TrainingDiverged: A loss, gradient or dev metric is not finite.
        TrialStopped: The reporter requested it; a checkpoint was written.
        ContractError: The stage has no seed, a pattern matches nothing, the best weights are requested but
            cannot be determined, rows that are to be trained first cannot be, or the precision is to be
            measured and was not.
    """
    loop = _Loop(training, context, evaluate, rows_first)
    config = loop.config
    layers = wrapped(loop.layers, is_recomputed=config.activation_checkpointing, is_compiled=config.compile)
    # Training must not shift the caller's own draws.
    with forked_rng(loop.device), layers:
        loop.run()
    loop.choose_result()
    # With its adapters, which no artifact has.
    outcome = loop.outcome()
    merge_adapters(training.model)
    if loop.workers.is_first:
        text = json.dumps(outcome.curves, allow_nan=False)
        (context.directory / CURVES_FILE).write_text(text + "\n", "utf-8")
        save(training.model, context.directory)
    return outcome


class _Loop:
    """A training in progress."""

    def __init__(
        self,
        training: Training,
        context: StageContext,
        evaluate: Evaluate | None,
        rows_first: RowsFirst | None,
    ) -> None:
        model, config, data = training.model, training.config, training.data
        if evaluate is None and (config.patience is not None or config.is_best_kept):
            raise ContractError(
                f"stage {context.stage.name}: average_last={config.average_last} and "
                f"patience={config.patience} need an evaluate function; give one, or set average_last: 1 and "
                "patience: null"
            )
        config = with_precision(config, context)
        if config.max_epochs is not None:
            config = config.in_steps(len(data.epoch(0)))
        self.model, self.data, self.config, self.context = model, data, config, context
        self.evaluate = evaluate
        self.device = torch.device(context.device)
        self.workers = Workers(context.rank, context.world_size, self.device)
        self.is_sharded = context.is_sharded and self.workers.size > 1
        finetune_part(model, training.learned, derive_seed(context.seed, "adapters"))
        model.to("cpu" if self.is_sharded else self.device)
        use_fast_products(model)
        choose_trained(model, training.learned)
        if rows_first is not None:
            rows_first.check(model)
        # Divided is a copy, so that a whole model can be measured, written and left behind.
        self.trained = copy.deepcopy(model) if self.is_sharded else model
        self.layers = layers_of(self.trained)
        if not self.layers and (config.compile or config.activation_checkpointing):
            raise ContractError(
                f"{context.stage.name}: train.compile and train.activation_checkpointing act on layers, and "
                "its model has none (a ModuleList of modules with parts): leave both out"
            )
        module: nn.Module = ObjectiveModule(self.trained, training.objective)
        if self.is_sharded:
            # On a CPU, where memory is no matter, autocast does not run norms in fp32.
            is_bf16 = config.precision == "bf16" and is_accelerator(self.device)
            shard(module, self.layers, self.device, is_bf16=is_bf16)
        elif self.workers.size > 1:
            module = DistributedDataParallel(module, init_sync=False, broadcast_buffers=False)
        self.optimizer = make_optimizer(self.trained, config, training.learned)
        self.state = TrainState(model)
        self._resume()
        self.stepper = Stepper(
            module, replace(training, config=config), self.optimizer, self.workers, context.seed, rows_first
        )
        self._epoch: tuple[int, Sequence[Rows]] | None = None

    def _resume(self) -> None:
        """Restore the newest checkpoint; the first worker reads it and sends it to the others."""
        moments, saved = optimizer_state(self.optimizer), Weights()

        def read() -> Any:
            latest = self.context.checkpoints.latest()
            if latest is not None:
                saved.update(self.state.read(latest[1], moments))
            return self.state.progress

        self.state.progress = self.workers.compute_on_first(read)
        if self.state.progress.step:
            # Before the first step all moments are zero on every worker.
            self.workers.broadcast(moments, saved)
        state = distinct_state(self.model)
        self.workers.broadcast(self._parts(state), state)

    def _parts(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of these names as this worker trains them, divided or not."""
        # Not by `distinct_state`: ties are told by addresses, which divided tensors do not have.
        parts = self.trained.state_dict()
        return {name: parts[name] for name in state}

    def _gather(self) -> None:
        """Bring the first worker's whole model up to date; all workers must call it."""
        if self.is_sharded:
            state = learned_state(self.model)
            for name, value in self.workers.gather(self._parts(state)):
                state[name].copy_(value)

    def _save(self) -> None:
        """Save a checkpoint, in which nothing is divided; all workers must call it."""
        self._gather()
        moments: Mapping[str, Tensor] = optimizer_state(self.optimizer)
        if self.is_sharded:
            moments = {name: value.cpu() for name, value in self.workers.gather(moments)}
        self.context.checkpoints.save(self.state.progress.step, partial(self.state.write, moments=moments))

    def run(self) -> None:
        """Train until an end condition holds."""
        progress, config = self.state.progress, self.config
        self.trained.train()
        # A training that was stopped by this evaluation has it on record.
        if config.is_evaluated_at_start and progress.step == 0 and not progress.curves:
            metrics = self._evaluate()
            progress.record(metrics)
            self._report(metrics)
        while progress.end_reason is None:
            self._take_step()
            is_last = progress.step == config.max_steps
            is_evaluated = is_last or progress.step % config.eval_every_steps == 0
            metrics: dict[str, float] = {}
            if is_evaluated or progress.step % REPORT_EVERY_STEPS == 0:
                metrics = progress.window.metrics() | {"train/lr": config.learning_rate(progress.step)}
                progress.window = Window()
            if is_evaluated:
                metrics |= self._evaluate()
            if is_last and progress.end_reason is None:
                progress.end_reason = "max_steps"
            progress.record(metrics)
            # After the evaluation, so that a resumed training neither repeats nor loses it.
            if progress.end_reason is None and progress.step % CHECKPOINT_EVERY_STEPS == 0:
                self._save()
            if metrics:
                self._report(metrics)

    def _take_step(self) -> None:
        progress = self.state.progress
        started = time.perf_counter()
        batches = self._next_batches()
        try:
            sums = self.stepper.take(progress.step + 1, batches)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"stage {self.context.stage.name}: {error}") from error
        seconds = time.perf_counter() - started
        progress.step += 1
        progress.num_examples += sum(len(rows) for _, rows in batches)
        progress.num_tokens += sums.tokens
        progress.seconds += seconds
        progress.window.add(sums, seconds)

    def _next_batches(self) -> list[tuple[int, Rows]]:
        """Take the global batches of one step, each with its epoch."""
        progress = self.state.progress
        taken = []
        while len(taken) < self.config.accumulation:
            if self._epoch is None or self._epoch[0] != progress.epoch:
                self._epoch = (progress.epoch, self.data.epoch(progress.epoch))
            batches = self._epoch[1]
            if not batches:
                raise DataError(f"epoch {progress.epoch} of stage {self.context.stage.name} has no batches")
            if progress.batch == len(batches):
                progress.epoch, progress.batch = progress.epoch + 1, 0
                continue
            taken.append((progress.epoch, batches[progress.batch]))
            progress.batch += 1
        return taken

    def _evaluate(self) -> dict[str, float]:
        """Measure on dev; keep the best weights and the snapshot to average."""
        self._gather()
        # A single snapshot would be the last weights, which the model has anyway.
        num_averaged = self.config.average_last or 1
        if num_averaged > 1 and self.state.progress.step and self.workers.is_first:
            self.state.snapshots.append(copy_to_cpu(learned_state(self.model)))
            del self.state.snapshots[:-num_averaged]
        evaluate = self.evaluate
        if evaluate is None:
            return {}
        self.model.eval()
        with torch.no_grad():
            metrics = self._measure(evaluate)
        self.trained.train()
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise TrainingDiverged(
                    f"{self.context.stage.name}: {name} is {value} at step {self.state.progress.step}"
                )
        self._judge(metrics)
        return metrics

    def _measure(self, evaluate: Evaluate) -> dict[str, float]:
        """Measure by all workers together, or on the first, which then alone has the whole model."""
        if self.is_sharded:
            return dict(self.workers.compute_on_first(lambda: self._measure_whole(evaluate)))
        token = SHARE.set(Share(self.workers.rank, self.workers.size))
        try:
            metrics = dict(evaluate(self.model))
        finally:
            SHARE.reset(token)
        # Those of the first, since another GPU may round another way, and all must end at the same step.
        return self.workers.compute_on_first(lambda: metrics)

    def _measure_whole(self, evaluate: Evaluate) -> Mapping[str, float]:
        """Measure a divided model, which is whole on the device for that time alone."""
        try:
            return evaluate(self.model.to(self.device))
        except torch.OutOfMemoryError as error:
            raise ContractError(
                f"stage {self.context.stage.name}: the first worker measures dev with the whole model, which "
                f"its device does not hold beside its part ({error}); raise resources.workers"
            ) from error
        finally:
            self.model.to("cpu")

    def _judge(self, metrics: Mapping[str, float]) -> None:
        """Update the best value and patience from these dev metrics."""
        progress, config = self.state.progress, self.config
        value = metrics.get(config.best_metric)
        if value is None:
            if config.is_best_kept or config.patience is not None:
                raise ContractError(
                    f"{self.context.stage.name}: best_metric={config.best_metric} is not measured; "
                    f"measured: {', '.join(metrics)}"
                )
            return
        sign = 1 if config.is_best_highest else -1
        # Of equally good evaluations the first one counts.
        if progress.best_value is None or sign * value > sign * progress.best_value:
            progress.best_value, progress.best_step, progress.num_since_best = value, progress.step, 0
            if config.is_best_kept and self.workers.is_first:
                self.state.best = copy_to_cpu(learned_state(self.model))
        else:
            progress.num_since_best += 1
            if config.patience is not None and progress.num_since_best >= config.patience:
                progress.end_reason = "patience"

    def _report(self, metrics: Mapping[str, float]) -> None:
        """Report metrics, then stop if that is requested."""
        progress = self.state.progress
        self.context.report(progress.step, metrics)
        if progress.end_reason is not None:
            return
        reason = self.workers.compute_on_first(self.context.should_stop)
        if reason is not None:
            self._save()
            raise TrialStopped(reason)

    def choose_result(self) -> None:
        """Put the resulting weights into the model: the last, the best, or the mean of the last few."""
        self._gather()
        if self.is_sharded:
            # The whole model takes the place of the parts, which hooks of modules refer to in circles.
            del self.trained, self.layers, self.optimizer, self.stepper
            gc.collect()
            self.model.to(self.device)
        self.model.eval()
        if self.workers.is_first:
            if self.config.is_best_kept and self.state.best is not None:
                # Overwritten in place, so that tied tensors stay tied.
                overwrite(learned_state(self.model), self.state.best, "best weights")
            elif self.state.snapshots:
                overwrite(
                    learned_state(self.model), average_weights(self.state.snapshots), "averaged weights"
                )
        state = distinct_state(self.model)
        self.workers.broadcast(state, state)

    def outcome(self) -> TrainOutcome:
        """Summarise the training."""
        num_parameters, num_trained = count_parameters(self.model)
        return TrainOutcome(
            **vars(self.state.progress), num_parameters=num_parameters, num_trained_parameters=num_trained
        )


# Selection of the trained parameters and of their learning rates.


MOMENTUM = 0.99
"""Nesterov momentum of the language models of Edunov et al. (2019), section 3.2."""


def match_names(
    patterns: Sequence[str],
    names: Sequence[str],
    purpose: str,
) -> set[str]:
    """Find the names that any of the regular expressions matches anywhere; ``purpose`` goes into the message.

    Raises:
        ContractError: A pattern matches nothing.
    """
    matched = set()
    for pattern in patterns:
        matching = {name for name in names if re.search(pattern, name)}
        if not matching:
            modules = sorted({name.split(".")[0] for name in names})
            raise ContractError(
                f"{purpose}: pattern '{pattern}' matches no parameter. Names begin with: {', '.join(modules)}"
            )
        matched |= matching
    return matched


def choose_trained(model: nn.Module, learned: LearnedParameters) -> list[str]:
    """Set ``requires_grad`` of every parameter; returns the names of those that are trained.

    Parameters frozen by the model itself (a frozen contextual encoder) stay frozen.

    Raises:
        ContractError: A pattern matches nothing, or no parameter is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    frozen = match_names(learned.frozen, names, "frozen")
    chosen = match_names(learned.only, names, "only") if learned.only else set(names)
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in chosen and name not in frozen)
        if parameter.requires_grad:
            trained.append(name)
    if not trained:
        raise ContractError(
            f"no parameter is left to train: frozen={list(learned.frozen)} and "
            f"only={list(learned.only)} leave none of {len(names)}"
        )
    return trained


def parameter_groups(
    model: nn.Module, config: TrainConfig, learned: LearnedParameters
) -> list[dict[str, Any]]:
    """Group the trained parameters by learning-rate multiplier and weight decay, for a torch optimiser.

    A model may have multipliers of its own (``lr_multipliers()``, by prefix of names: finetuned contexts);
    they and those of ``learned`` multiply. Each group carries its ``lr_multiplier``, the number of its
    ``frozen_steps`` and the ``names`` of its parameters.

    Raises:
        ContractError: A group's pattern matches no trained parameter.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    multipliers, frozen_steps = dict.fromkeys(trained, 1.0), dict.fromkeys(trained, 0)
    for group in reversed(learned.groups):  # the first matching group is applied last
        for name in match_names([group.pattern], list(trained), "groups"):
            multipliers[name], frozen_steps[name] = group.lr_multiplier, group.num_frozen_steps
    model_multipliers = getattr(model, "lr_multipliers", dict)
    for prefix, multiplier in model_multipliers().items():
        for name in trained:
            if name.startswith(prefix):
                multipliers[name] *= multiplier
    groups: dict[tuple[float, int, float], dict[str, Any]] = {}
    for name, parameter in trained.items():
        # Biases and the gains of norms are vectors, and decay would only pull norms towards zero.
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        group = groups.setdefault(
            (multipliers[name], frozen_steps[name], decay),
            {
                "params": [],
                "names": [],
                "lr": config.peak_lr * multipliers[name],
                "lr_multiplier": multipliers[name],
                "frozen_steps": frozen_steps[name],
                "weight_decay": decay,
            },
        )
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def make_optimizer(
    model: nn.Module, config: TrainConfig, learned: LearnedParameters = ALL_LEARNED
) -> torch.optim.Optimizer:
    """Make the optimiser of the parameters that ``choose_trained`` selected, with a fused kernel if possible.

    Raises:
        ContractError: A group's pattern matches no trained parameter.

    Source: Loshchilov and Hutter (2019); Sutskever et al. (2013).
    """
    groups = parameter_groups(model, config, learned)
    # torch has fused optimisers for these devices alone.
    is_fused = all(parameter.device.type in _FUSED_ON for parameter in model.parameters())
    if config.optimizer == "nesterov":
        # Divided tensors have a fused AdamW alone.
        is_fused &= not any(map(is_divided, model.parameters()))
        return torch.optim.SGD(groups, lr=config.peak_lr, momentum=MOMENTUM, nesterov=True, fused=is_fused)
    return torch.optim.AdamW(
        groups, lr=config.peak_lr, betas=config.betas, eps=config.epsilon, fused=is_fused
    )
