"""Linear maps in fp32 on a CPU, by the faster of torch's two libraries.

torch multiplies fp32 matrices with MKL, which runs its AVX2 kernels on AMD's CPUs. oneDNN, which torch brings
along for other operations, runs AVX-512 there: 240 to 270 GFLOP/s a thread instead of 105 to 120 on Zen 5.
Results differ by rounding. Which of them computes depends on the kind of CPU and on shapes, never on a
measurement, so a resumed training repeats its bits, and so does a search.

Shape letters: R rows, K inputs, N outputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlgraft.nn.model_config import NORM_EPS, Activation, Norm

# A kernel of 0.4 MB is kept for every shape, of which batches have many: by default 1024, 450 MB of every
# worker, in oneDNN and in torch's layer above it. A step needs about fifty. Read at first use in a process.
for _name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_name, "128")

_MIN_PRODUCTS = 2**22
"""Multiplications below which calls cost more than they save (without gradients both are even at 2^20)."""
_PACKED_ROWS = 256
"""Rows for which weights are packed; any number of rows may come."""


def _has_fast_kernels() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    )


_IS_AVAILABLE = _has_fast_kernels()


def product(
    a_RK: Tensor,
    b_NK: Tensor,
    bias_N: Tensor | None = None,
) -> Tensor:
    """Compute ``a @ b.T + bias``, [R, N], without gradients; ``b`` may be a transposed view."""
    if _is_worthwhile(a_RK, b_NK):
        return _by_onednn(a_RK, b_NK, bias_N)
    return F.linear(a_RK, b_NK, bias_N)


def transposed_product(a_RN: Tensor, b_RK: Tensor) -> Tensor:
    """Compute ``a.T @ b``, [N, K], without gradients."""
    if not _is_worthwhile(a_RN.T, b_RK.T):
        return a_RN.T @ b_RK
    # oneDNN wants its first matrix by rows: the smaller one is copied for that, the other read as it lies.
    if a_RN.shape[1] < b_RK.shape[1]:
        return _by_onednn(a_RN.T, b_RK.T, None)
    return _by_onednn(b_RK.T, a_RN.T, None).T


def _is_worthwhile(a_RK: Tensor, b_NK: Tensor) -> bool:
    return _is_possible(a_RK, b_NK) and a_RK.numel() * len(b_NK) >= _MIN_PRODUCTS


def _is_possible(*tensors: Tensor) -> bool:
    # torch's compiler has kernels of its own, and cannot call this one with weights that change.
    if not _IS_AVAILABLE or torch.compiler.is_compiling():
        return False
    return all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


def _by_onednn(
    a_RK: Tensor,
    b_NK: Tensor,
    bias_N: Tensor | None,
) -> Tensor:
    return cast("Tensor", torch.ops.mkldnn._linear_pointwise(a_RK, b_NK, bias_N, "none", [], ""))


class Linear(nn.Linear):
    """``nn.Linear``, the same weights and results up to rounding."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map [..., K] to [..., N]."""
        # Under autocast torch computes in bfloat16, by oneDNN.
        if not _is_worthwhile(input, self.weight) or torch.is_autocast_enabled("cpu"):
            return F.linear(input, self.weight, self.bias)
        if torch.is_grad_enabled():
            return cast("Tensor", _Linear.apply(input, self.weight, self.bias))
        return _by_onednn(input, self.weight, self.bias)


def use_fast_products(model: nn.Module) -> None:
    """Turn the linear maps of any model into ``Linear``, in place; weights stay where they are."""
    for module in model.modules():
        # Subclasses may compute something else.
        if type(module) is nn.Linear:
            module.__class__ = Linear


@contextmanager
def packed_weights(model: nn.Module) -> Iterator[None]:
    """Keep the weights of a model's linear maps in oneDNN's layout inside, for the many products of a search.

    Nothing may need gradients meanwhile or change the weights, which are in memory twice (tied ones once
    more for each layer). Layers that an outer call has packed stay as they are.
    """
    packed = [layer for layer in model.modules() if _is_packable(layer)]
    try:
        for layer in packed:
            vars(layer)["forward"] = _Packed(layer)
        yield
    finally:
        for layer in packed:
            vars(layer).pop("forward", None)


def _is_packable(module: nn.Module) -> TypeGuard[nn.Linear]:
    # Other subclasses may compute something else.
    is_linear = type(module) in (nn.Linear, Linear)
    return is_linear and "forward" not in vars(module) and _is_possible(cast("Tensor", module.weight))


class _Packed:
    """The map of a layer whose weights have been packed."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _PACKED_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        layer = self._layer
        # Autocast chooses another precision, and an empty input has nothing to multiply.
        if not _is_possible(x) or not x.numel() or torch.is_autocast_enabled("cpu"):
            return F.linear(x, layer.weight, layer.bias)
        return _by_onednn(x, self._weight, layer.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_NK: Tensor,
        bias_N: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight_NK)
        y_RN = _by_onednn(x.flatten(0, -2), weight_NK, bias_N)
        # As torch's own matmul does: a view could not be changed in place by what follows, such as a ReLU.
        return torch.ops.aten._unsafe_view(y_RN, [*x.shape[:-1], len(weight_NK)])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight_NK = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        # A sum's gradient is one number repeated by strides of zero, which oneDNN does not read.
        grad_RN = grad.reshape(-1, len(weight_NK)).contiguous()
        grad_x = product(grad_RN, weight_NK.T).view(x.shape) if needs_x else None
        grad_weight = transposed_product(grad_RN, x.reshape(-1, x.shape[-1])) if needs_weight else None
        return grad_x, grad_weight, grad_RN.sum(0) if needs_bias else None


# The residual connection, the only place where norm order appears, and the feed-forward block.
#
# Shape letters: B sentences, T positions, D model width.


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": partial(F.relu, inplace=True),  # a linear map does not need its output for the gradient
    "gelu": F.gelu,
    "silu": F.silu,
}


class Residual(nn.Module):
    """The connection around a sublayer f: LN(x + drop(f(x))) if post-norm, x + drop(f(LN(x))) if pre-norm.

    ``f`` is called between ``enter`` and ``leave``, so that other flows can be merged with its result.

    Args:
        d_model: Width.
        norm: Norm order.
        dropout: Dropout on the sublayer's output.
        has_enter: ``enter`` will be called; without it a pre-norm connection has no parameters.
        has_leave: ``leave`` will be called; without it a post-norm connection has no parameters.
        is_affine: The norm has a gain and a bias.
        eps: Added to the variance in the norm.
    """

    def __init__(
        self,
        d_model: int,
        norm: Norm,
        dropout: float,
        *,
        has_enter: bool = True,
        has_leave: bool = True,
        is_affine: bool = True,
        eps: float = NORM_EPS,
    ) -> None:
        super().__init__()
        layer_norm = nn.LayerNorm(d_model, eps=eps, elementwise_affine=is_affine)
        self.input_norm = layer_norm if norm == "pre" and has_enter else None
        self.output_norm = layer_norm if norm == "post" and has_leave else None
        self.dropout = nn.Dropout(dropout)

    def enter(self, x_BTD: Tensor) -> Tensor:
        """Return the sublayer's input [B, T, D]: the residual stream, normalised if pre-norm."""
        return x_BTD if self.input_norm is None else self.input_norm(x_BTD)

    def leave(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Add the sublayer's output to the residual stream, and normalise if post-norm, [B, T, D]."""
        total = x_BTD + self.dropout(y_BTD)
        return total if self.output_norm is None else self.output_norm(total)

    def around(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Run a sublayer with which no other flow is merged, [B, T, D]."""
        return self.leave(x_BTD, sublayer(self.enter(x_BTD)))


def zero(linear: nn.Linear) -> None:
    """Set the weights of a sublayer's last projection to zero, so that it contributes nothing at first."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)


class FeedForward(nn.Module):
    """The feed-forward block W2 drop(act(W1 x + b1)) + b2."""

    def __init__(
        self,
        d_model: int,
        ffn_dim: int,
        activation: Activation,
        activation_dropout: float,
    ) -> None:
        super().__init__()
        self.inner = Linear(d_model, ffn_dim)
        self.outer = Linear(ffn_dim, d_model)
        self.activate = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(activation_dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each position, [B, T, D]."""
        return self.outer(self.dropout(self.activate(self.inner(x_BTD))))
