"""Faster linear layers while a model decodes on a CPU: oneDNN's fp32, or int8.

Torch multiplies fp32 matrices by MKL, which keeps to AVX2 on processors of other makers than Intel. oneDNN,
which comes with torch as well, uses AVX-512 wherever there is one; that was twice as fast on Zen 5. Both
compute in fp32 and differ in the order in which they add.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao.nn.quantized import dynamic
from torch.ao.quantization import per_channel_dynamic_qconfig

from nlgraft.nn.model_config import Precision

_GAIN = 1.2
"""How many times faster oneDNN must be: far from 1 and 2, so that a loaded machine decides as an idle one."""
_ROWS = 256
"""Rows for which weights are arranged; any number of rows may come."""

_Layer = Callable[[Tensor], Tensor]


@contextmanager
def fast_linears(model: nn.Module, precision: Precision = "fp32") -> Iterator[None]:
    """Run the linear layers of a model faster inside, where it must not be trained.

    Layers that are not on a CPU, or not in fp32, stay as they are, and so do those that an outer call has
    changed.

    Args:
        model: A model in evaluation mode.
        precision: fp32, by oneDNN if that is faster on this processor; or int8: weights are rounded by
            output, inputs by batch (dynamic quantisation), and the rest of the model stays in fp32.
    """
    make = {"fp32": _by_onednn if is_onednn_faster() else None, "int8": _in_int8}[precision]
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and "forward" not in vars(layer)]
    changed = [layer for layer in layers if _is_plain(layer.weight)] if make else []
    engine = torch.backends.quantized.engine
    if precision == "int8" and "onednn" in torch.backends.quantized.supported_engines:
        torch.backends.quantized.engine = "onednn"  # half as fast again as the default on large vocabularies
    try:
        for layer in changed:
            vars(layer)["forward"] = make(layer)
        yield
    finally:
        for layer in changed:
            vars(layer).pop("forward", None)
        torch.backends.quantized.engine = engine


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _by_onednn(layer: nn.Linear) -> _Layer:
    linear = _onednn(layer.weight.detach(), layer.bias)

    def forward(x: Tensor) -> Tensor:
        # Autocast chooses another precision, and an empty input has nothing to multiply.
        if not _is_plain(x) or not x.numel() or torch.is_autocast_enabled("cpu"):
            return F.linear(x, layer.weight, layer.bias)
        return linear(x)

    return forward


def _onednn(weight: Tensor, bias: Tensor | None) -> _Layer:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _in_int8(layer: nn.Linear) -> _Layer:
    with torch.random.fork_rng(devices=[]):  # a layer draws its weights before it is given others
        copy = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    copy.weight, copy.bias = layer.weight, layer.bias
    copy.qconfig = per_channel_dynamic_qconfig
    with warnings.catch_warnings():
        # 2026-11: torch 2.13 announces the end of quantised tensors; only this function makes any.
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor, torch.quantize_per_channel")
        return dynamic.Linear.from_float(copy).forward


@cache
def is_onednn_faster() -> bool:
    """Tell if oneDNN multiplies faster on this processor; measured once in a process, in milliseconds."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    with torch.inference_mode():
        x, weight = torch.zeros(_ROWS, 512), torch.zeros(512, 512)
        onednn = _onednn(weight, None)
        return _fastest_s(lambda: F.linear(x, weight)) > _GAIN * _fastest_s(lambda: onednn(x))


def _fastest_s(work: Callable[[], object], num_calls: int = 10) -> float:
    seconds = []
    for _ in range(num_calls):
        began_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began_s)
    return min(seconds)
