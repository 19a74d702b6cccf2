"""Objectives of training, summed over real tokens, and the loss of every segment.

Shape letters: B sentences, J target positions, R real target positions, V vocabulary, d model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.evaluation.shares import SHARE
from nlgraft.nn.batch import Batch
from nlgraft.nn.linear import product, transposed_product
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.modes import evaluating, is_accelerator
from nlgraft.training.train_config import SmoothedTrainConfig, SmoothingKind


class Loss(NamedTuple):
    """Result of an objective on a batch.

    Attributes:
        loss_sum: Loss summed over the batch's tokens, differentiable, scalar.
        num_tokens: Number of these tokens, or of what else the loss is averaged over, as lines of a
            classifier: the loop divides by the count of the whole global batch.
        terms: Parts of the sum for the learning curves, as detached sums over the same tokens.
    """

    loss_sum: Tensor
    num_tokens: int
    terms: Mapping[str, Tensor] = {}


Objective = Callable[[Any, Any], Loss]
"""``objective(model, batch)``; the batch is what the data made, moved to the device."""


def real_hidden(model: Seq2Seq, batch: Batch) -> tuple[Tensor, Tensor]:
    """Run the model; keep states [R, d] and true tokens [R] of the real target positions, row by row.

    Padding then costs no softmax.
    """
    hidden_BJd = model(batch)
    hidden, target = hidden_BJd.flatten(0, 1), batch.target_output.flatten()
    if batch.target_input.has_padding:
        positions_R = batch.target_input.valid.flatten().nonzero()[:, 0]
        hidden, target = hidden.index_select(0, positions_R), target.index_select(0, positions_R)
    return hidden, target


@dataclass(frozen=True)
class Seq2SeqObjective:
    """Label-smoothed cross-entropy of the target given the sources.

    Attributes:
        smoothing: Probability mass taken from the true token.
        kind: The tokens that get it.
    """

    smoothing: float = 0.1
    kind: SmoothingKind = "uniform_all"

    @classmethod
    def of(cls, config: SmoothedTrainConfig) -> Seq2SeqObjective:
        """Make the objective of a training's ``label_smoothing`` and ``smoothing_kind``."""
        return cls(config.label_smoothing, config.smoothing_kind)

    def __call__(self, model: Seq2Seq, batch: Batch) -> Loss:
        """Compute the summed loss of a batch and its number of real target tokens."""
        hidden_Rd, target_R = real_hidden(model, batch)
        output = model.output_projection
        loss = projected_cross_entropy(
            hidden_Rd, output.weight, output.bias, target_R, self.smoothing, self.kind
        )
        return Loss(loss, len(target_R))


class Predictions(NamedTuple):
    """Predicted tokens of a batch.

    Attributes:
        logits: [P, V].
        tokens: The true ones, int64 [P].
        rows: Segment of the batch to which each belongs, int64 [P].
    """

    logits: Tensor
    tokens: Tensor
    rows: Tensor


Predict = Callable[[Any, Any], Predictions]
"""``predict(model, batch)``."""


@dataclass(frozen=True)
class TokenObjective:
    """Cross-entropy of the predicted tokens.

    Attributes:
        predict: Predicts the tokens of a batch.
        smoothing: Probability mass taken from the true token.
        kind: Tokens among which it is distributed.
    """

    predict: Predict
    smoothing: float = 0.0
    kind: SmoothingKind = "uniform_all"

    def __call__(self, model: Any, batch: Any) -> Loss:
        """Compute the summed loss of a batch and its number of predicted tokens."""
        logits_PV, tokens_P, _ = self.predict(model, batch)
        return Loss(smoothed_cross_entropy(logits_PV, tokens_P, self.smoothing, self.kind), len(tokens_P))


def predict_target(model: Seq2Seq, batch: Batch) -> Predictions:
    """Predict the real target tokens of a batch from those before them and the sources."""
    hidden_Rd, target_R = real_hidden(model, batch)
    return Predictions(model.logits(hidden_Rd), target_R, batch.target_input.valid.nonzero()[:, 0])


def segment_losses(
    model: Any,
    batches: Iterable[tuple[NDArray[np.int64], Any]],
    num_segments: int,
    device: torch.device | str = "cpu",
    predict: Predict = predict_target,
) -> NDArray[np.float64]:
    """Compute the negative log-likelihood of every segment, all workers of a `SHARE` together.

    Args:
        model: The model.
        batches: Row numbers [B] and the batch of these rows; a segment may be in several batches.
        num_segments: Number of segments in all.
        device: Device of the model.
        predict: Predicts the tokens of a batch.

    Returns:
        Nats and predicted tokens of each segment, without smoothing, [N, 2].
    """
    statistics_N2, share = np.zeros((num_segments, 2)), SHARE.get()
    with evaluating(model):
        for rows, batch in share.of(batches):
            logits_PV, tokens_P, row_P = predict(model, batch.to(device))
            nats_P = F.cross_entropy(logits_PV.float(), tokens_P, reduction="none").double().cpu().numpy()
            segment_P = rows[row_P.cpu().numpy()]
            np.add.at(statistics_N2[:, 0], segment_P, nats_P)
            np.add.at(statistics_N2[:, 1], segment_P, 1)
    return np.sum(share.gather(statistics_N2), axis=0)


# Label-smoothed cross-entropy, from logits or from the states that are projected to logits.
#
# ``uniform_all``: q = (1 - e) [v = y] + e / V, so the true token keeps 1 - e + e / V.
# ``uniform_others``: q = 1 - e for the true token, e / (V - 1) for each other one.
#
# The projection to the vocabulary is the largest tensor of a training. ``projected_cross_entropy`` therefore
# takes rows in slices that fit the cache and computes their gradient while they are there: no logits are
# stored, and the exponential is the only pass over them besides the matrix products.
#
# Shape letters: R real target positions, C rows of a slice, V vocabulary, d model width.


_SLICE_ELEMENTS = {False: 2**22, True: 2**26}
"""Logits of a slice: 16 MB of fp32 on a CPU (measured best at V = 8000), 256 MB on a GPU."""


def _mass_over_all(smoothing: float, kind: SmoothingKind, vocabulary: int) -> float:
    """Return the e of ``uniform_all`` whose q is that of the requested kind."""
    return smoothing * vocabulary / (vocabulary - 1) if kind == "uniform_others" else smoothing


def smoothed_cross_entropy(
    logits_RV: Tensor, target_R: Tensor, smoothing: float, kind: SmoothingKind
) -> Tensor:
    """Sum the cross-entropy of logits against smoothed targets, ``-sum_r sum_v q log p``, a scalar.

    Args:
        logits_RV: Unnormalised log-probabilities; computed in at least fp32.
        target_R: True tokens, int64.
        smoothing: e, the probability mass taken from the true token.
        kind: Tokens among which that mass is distributed.

    Source: Szegedy et al. (2016), section 7.
    """
    if logits_RV.dtype in (torch.bfloat16, torch.float16):
        logits_RV = logits_RV.float()
    mass = _mass_over_all(smoothing, kind, logits_RV.shape[-1])
    normaliser_R = torch.logsumexp(logits_RV, dim=-1)
    true_R = logits_RV.gather(-1, target_R[:, None])[:, 0]
    loss_R = normaliser_R - (1 - mass) * true_R
    if mass:
        loss_R = loss_R - mass * logits_RV.mean(-1)
    return loss_R.sum()


def projected_cross_entropy(
    hidden_Rd: Tensor,
    weight_Vd: Tensor,
    bias_V: Tensor | None,
    target_R: Tensor,
    smoothing: float,
    kind: SmoothingKind,
) -> Tensor:
    """Sum the cross-entropy of ``hidden @ weight.T + bias`` against smoothed targets, a scalar.

    Equal to ``smoothed_cross_entropy`` of the logits up to rounding. Under autocast the matrix products have
    its type and all else is fp32. Differentiable once.

    Args:
        hidden_Rd: States of real target positions.
        weight_Vd: Output projection.
        bias_V: Its bias, or None.
        target_R: True tokens, int64.
        smoothing: e, the probability mass taken from the true token.
        kind: Tokens among which that mass is distributed.

    Source: slicing as in Wijmans et al. (2025), Cut Your Losses. Differs: the gradient is computed in the
    forward pass.
    """
    mass = _mass_over_all(smoothing, kind, len(weight_Vd))
    loss: Tensor = _Projected.apply(hidden_Rd, weight_Vd, bias_V, target_R, mass, torch.is_grad_enabled())
    return loss


class _Projected(torch.autograd.Function):
    """Loss and gradient, slice by slice.

    With logits l, m = max l, x = exp(l - m) and z = sum x, the gradient with respect to l is
    x / z - (1 - e) [v = y] - e / V. The division by z and the constant e / V are moved out of the products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_Rd: Tensor,
        weight_Vd: Tensor,
        bias_V: Tensor | None,
        target_R: Tensor,
        mass: float,
        is_differentiated: bool,
    ) -> Tensor:
        device = hidden_Rd.device.type
        rows = max(1, _SLICE_ELEMENTS[is_accelerator(device)] // len(weight_Vd))
        wide = torch.promote_types(weight_Vd.dtype, torch.float32)
        # Autocast is off here, to keep all but the products in fp32, so its casts are made by hand.
        narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_Vd.dtype
        with torch.autocast(device, enabled=False):
            hidden, weight = hidden_Rd.to(narrow), weight_Vd.to(narrow)
            # The smoothing term needs the mean logit alone, which is a product with the mean row.
            mean_d = weight_Vd.to(wide).mean(0)
            mean_logits = (hidden_Rd.to(wide) @ mean_d).sum()
            if bias_V is not None:
                mean_logits = mean_logits + bias_V.to(wide).mean() * len(hidden)
            loss = -mass * mean_logits
            grad_hidden = torch.empty_like(hidden, dtype=wide)
            grad_weight = torch.zeros_like(weight, dtype=wide)
            grad_bias = None if bias_V is None else torch.zeros_like(bias_V, dtype=wide)
            for h_Cd, y_C, out_Cd in zip(
                hidden.split(rows), target_R.split(rows), grad_hidden.split(rows), strict=True
            ):
                x_CV = product(h_Cd, weight).to(wide)
                if bias_V is not None:
                    x_CV += bias_V
                true_C1 = x_CV.gather(1, y_C[:, None])
                max_C1 = x_CV.amax(1, keepdim=True)
                # In place: a second [C, V] tensor would not fit the cache.
                x_CV.sub_(max_C1).exp_()
                z_C1 = x_CV.sum(1, keepdim=True)
                loss += (z_C1.log() + max_C1 - (1 - mass) * true_C1).sum()
                # Evaluation needs the loss alone and saves two of the three products.
                if not is_differentiated:
                    continue
                # Now x is z times the gradient, but for the constant e / V, which is subtracted after the
                # loop.
                x_CV.scatter_add_(1, y_C[:, None], (mass - 1) * z_C1)
                x = x_CV.to(narrow)
                torch.div(product(x, weight.T), z_C1, out=out_Cd)
                grad_weight += transposed_product(x, (h_Cd / z_C1.to(wide)).to(narrow))
                if grad_bias is not None:
                    grad_bias += (x_CV / z_C1).sum(0)
            if is_differentiated:
                vocabulary = len(weight)
                grad_hidden -= mass * mean_d
                grad_weight -= hidden_Rd.to(wide).sum(0) * (mass / vocabulary)
                if grad_bias is not None:
                    grad_bias -= mass * len(hidden) / vocabulary
                # Kept instead of logits: backward only scales them, so the loss may be differentiated once.
                ctx.gradients = (
                    grad_hidden.to(hidden_Rd.dtype),
                    grad_weight.to(weight_Vd.dtype),
                    grad_bias,
                )
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        scaled = [None if grad is None else grad * grad_loss.to(grad.dtype) for grad in ctx.gradients]
        return (*scaled, None, None, None)
