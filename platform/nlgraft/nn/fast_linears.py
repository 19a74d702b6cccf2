"""Faster linear layers while a model decodes on a CPU.

Torch multiplies fp32 matrices by MKL, which keeps to AVX2 on processors of other makers than Intel. oneDNN,
which comes with torch as well, uses AVX-512 wherever there is one; that was twice as fast on Zen 5. Both
compute in fp32 and differ in the order in which they add.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_GAIN = 1.2
"""How many times faster oneDNN must be: far from 1 and 2, so that a loaded machine decides as an idle one."""
_ROWS = 256
"""Rows for which weights are arranged; any number of rows may come."""

_Layer = Callable[[Tensor], Tensor]


@contextmanager
def fast_linears(model: nn.Module) -> Iterator[None]:
    """Run the fp32 linear layers of a model by oneDNN inside, without gradients, if that is faster here.

    Layers that are not on a CPU stay as they are, and so do those that an outer call has changed. The others'
    weights are in memory twice meanwhile, tied ones once for each layer.
    """
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and "forward" not in vars(layer)]
    changed = [layer for layer in layers if _is_plain(layer.weight)] if is_onednn_faster() else []
    try:
        for layer in changed:
            vars(layer)["forward"] = _by_onednn(layer)
        yield
    finally:
        for layer in changed:
            vars(layer).pop("forward", None)


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
