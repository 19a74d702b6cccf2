"""State of a training, and the checkpoint from which it resumes bit for bit.

A checkpoint holds the trained weights, both moments of the optimiser, the best weights and the snapshots to
average, all as safetensors, and ``progress.json``: the step, the position in the data, the best value so far
and the curves. It holds no generator state, since every draw is made from the seed and its place
(``nlgraft.training.seeds``), and no frozen parameters, since the stage builds them again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import StoreError
from nlgraft.training.step import StepSums
from nlgraft.training.weights import Weights, load_weights, save_weights, tied_names

Curves = dict[str, list[list[float]]]


@dataclass
class Window:
    """Sums over the steps since the last report.

    Attributes:
        losses: Sums over tokens: ``loss`` and the objective's terms.
        tokens: Tokens.
        seconds: Time spent in the steps.
        gradient_norm: Sum of the steps' norms before clipping; None if the gradient is not clipped.
        steps: Number of steps.
    """

    losses: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    gradient_norm: float | None = None
    steps: int = 0

    def add(self, sums: StepSums, seconds: float) -> None:
        """Add a step that took ``seconds``."""
        for name, amount in sums.losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + amount
        self.tokens += sums.tokens
        self.seconds += seconds
        self.steps += 1
        if sums.gradient_norm is not None:
            self.gradient_norm = (self.gradient_norm or 0.0) + sums.gradient_norm

    def metrics(self) -> dict[str, float]:
        """Compute means: losses per token, gradient norms per step, tokens per second."""
        metrics = {f"train/{name}": amount / self.tokens for name, amount in self.losses.items()}
        metrics["train/tokens_per_s"] = self.tokens / self.seconds
        if self.gradient_norm is not None:
            metrics["train/gradient_norm"] = self.gradient_norm / self.steps
        return metrics


@dataclass
class Progress:
    """Everything about a training that is not a tensor.

    Attributes:
        step: Optimiser steps taken.
        epoch: Epoch of the next batch.
        batch: Number of the next batch within its epoch.
        num_examples: Examples trained on, over all workers.
        num_tokens: Tokens trained on, over all workers.
        seconds: Time spent in steps, without evaluation.
        best_value: Best value of ``best_metric``, None before the first evaluation.
        best_step: Step of the best value.
        num_since_best: Evaluations since then.
        end_reason: ``max_steps`` (reached by epochs, too) or ``patience``; None while training continues.
        window: Sums since the last report.
        curves: Points [step, value, unix milliseconds] by metric.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    num_examples: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    best_value: float | None = None
    best_step: int | None = None
    num_since_best: int = 0
    end_reason: str | None = None
    window: Window = field(default_factory=Window)
    curves: Curves = field(default_factory=dict)

    def record(self, metrics: Mapping[str, float]) -> None:
        """Append a point at the present step to the curve of each metric."""
        now_ms = int(time.time() * 1000)
        for name, value in metrics.items():
            self.curves.setdefault(name, []).append([self.step, value, now_ms])


def distinct_state(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, each of its own shape; a tied tensor is listed under one name."""
    state = model.state_dict()
    aliases = tied_names(state)
    return {name: tensor for name, tensor in state.items() if name not in aliases}


def learned_state(model: nn.Module) -> dict[str, Tensor]:
    """Return what training changes, trained parameters and buffers, each of its own shape, tied ones once."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {name: tensor for name, tensor in distinct_state(model).items() if name not in frozen}


def copy_to_cpu(state: Mapping[str, Tensor]) -> Weights:
    """Copy tensors, each of its own shape, to the CPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


@torch.no_grad()
def overwrite(
    state: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    source: str,
) -> None:
    """Copy weights into tensors of the same names; ``source`` names them in messages.

    Raises:
        StoreError: The names or shapes differ.
    """
    check_alike(state, weights, source)
    for name, tensor in state.items():
        tensor.copy_(weights[name])


def check_alike(
    state: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    source: str,
) -> None:
    """Verify that weights have the names and shapes of other tensors; ``source`` names them in messages.

    Raises:
        StoreError: The names or shapes differ.
    """
    if set(state) != set(weights):
        raise StoreError(f"{source}: names differ from the model's: {sorted(set(state) ^ set(weights))}")
    for name, tensor in state.items():
        if tensor.shape != weights[name].shape:
            raise StoreError(f"{source}: '{name}' has shape {tuple(weights[name].shape)}")


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimiser's tensors as ``<moment>/<parameter>``, creating them if no step was taken yet.

    AdamW's ``step`` is a scalar, all moments have the parameter's shape.
    """
    is_adam = isinstance(optimizer, torch.optim.AdamW)
    moments = ("exp_avg", "exp_avg_sq") if is_adam else ("momentum_buffer",)
    tensors = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            state = optimizer.state[parameter]
            if is_adam and "step" not in state:
                # torch's fused AdamW keeps its step beside the parameter, the others on the CPU.
                step_device = parameter.device if group["fused"] else "cpu"
                state["step"] = torch.zeros((), dtype=torch.float32, device=step_device)
            for moment in moments:
                if state.get(moment) is None:
                    state[moment] = torch.zeros_like(parameter)
            tensors |= {f"{moment}/{name}": tensor for moment, tensor in state.items()}
    return tensors


@dataclass
class TrainState:
    """Content of a checkpoint.

    Attributes:
        model: The model, whole.
        progress: Position, best value and curves.
        best: Copy of the best weights, None before the first evaluation or if not kept.
        snapshots: Copies of the weights at the last evaluation points, oldest first.
    """

    model: nn.Module
    progress: Progress = field(default_factory=Progress)
    best: Weights | None = None
    snapshots: list[Weights] = field(default_factory=list)

    def write(self, directory: Path, moments: Mapping[str, Tensor]) -> None:
        """Write the state, with the optimiser's, into an empty directory."""
        save_weights(learned_state(self.model), directory / "model.safetensors")
        save_weights(moments, directory / "optimizer.safetensors")
        if self.best is not None:
            save_weights(self.best, directory / "best.safetensors")
        for number, snapshot in enumerate(self.snapshots):
            save_weights(snapshot, directory / f"snapshot-{number}.safetensors")
        text = json.dumps(asdict(self.progress), allow_nan=False)
        (directory / "progress.json").write_text(text + "\n", "utf-8")

    def read(self, directory: Path, moments: Mapping[str, Tensor]) -> Weights:
        """Restore the state from a directory of ``write``.

        Args:
            directory: The directory.
            moments: Tensors of the optimiser, for their names and shapes.

        Returns:
            Their values.

        Raises:
            StoreError: The checkpoint belongs to another model or cannot be read.
        """
        try:
            saved = json.loads((directory / "progress.json").read_text("utf-8"))
            self.progress = Progress(**{**saved, "window": Window(**saved["window"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(f"{directory}: no readable progress.json ({error})") from error
        overwrite(learned_state(self.model), load_weights(directory / "model.safetensors"), str(directory))
        values = load_weights(directory / "optimizer.safetensors")
        check_alike(moments, values, str(directory))
        best = directory / "best.safetensors"
        self.best = load_weights(best) if best.exists() else None
        # By number, not by sorted name: snapshot-10 would come before snapshot-2.
        count = len(list(directory.glob("snapshot-*.safetensors")))
        self.snapshots = [
            load_weights(directory / f"snapshot-{number}.safetensors") for number in range(count)
        ]
        return values
