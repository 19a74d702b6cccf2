"""A GPU in name: real values, computed on the CPU, on the device ``simgpu:0``; no operation mixes devices.

A tensor on the device holds one on the CPU (`OnGpu`). While `simulated` is active, each operation runs
on what is held and its results are on the device again; an operation on tensors of two devices raises,
as CUDA's do, but for scalars. Dispatch in Python costs 5 to 20 times an operation's time on the CPU, so
this is for toys.

It rests on an experimental part of PyTorch, which registers a backend without a compiler, and cannot
show what needs real hardware: asynchronous copies, memory, collectives, low precision and speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import library
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "simgpu"
DEVICE = f"{NAME}:0"
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default}
"""Operations that may take tensors of two devices."""


class _Backend(_DummyBackendModule):
    """What ``torch.get_device_module`` returns; draws on the device are the CPU's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def device_count(self) -> int:
        return 1

    def is_bf16_supported(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class OnGpu(torch.Tensor):
    """A tensor on the simulated device.

    Attributes:
        inner: Its values, on the CPU.
    """

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnGpu:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(DEVICE),
            requires_grad=False,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"OnGpu({self.inner})"

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(operation, args, kwargs or {})


class _EveryOperation(TorchDispatchMode):
    """Also sees operations that make tensors, which take none."""

    def __torch_dispatch__(self, *args: Any) -> Any:
        return OnGpu.__torch_dispatch__(*args)


def _is_simulated(device: Any) -> bool:
    return torch.device(device).type == NAME


def _held(value: Any) -> Any:
    return value.inner if isinstance(value, OnGpu) else value


def _run(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    is_on_gpu = any(isinstance(tensor, OnGpu) for tensor in tensors)
    if is_on_gpu and operation not in COPIES:
        others = [tensor for tensor in tensors if not isinstance(tensor, OnGpu) and tensor.dim() > 0]
        if others:
            raise RuntimeError(f"{operation}: tensors on {DEVICE} and on {others[0].device}")
    device = kwargs.get("device")
    inner_kwargs = tree_map(_held, dict(kwargs))
    if device is not None:
        inner_kwargs["device"] = torch.device("cpu") if _is_simulated(device) else device
    result = operation(*tree_map(_held, tuple(args)), **inner_kwargs)
    if device is not None:
        goes_on_gpu = _is_simulated(device)
    else:
        goes_on_gpu = isinstance(args[0], OnGpu) if operation in COPIES else is_on_gpu
    if operation is aten._local_scalar_dense.default or not goes_on_gpu:
        return result
    # What is changed in place stays the same tensor.
    originals = {id(_held(tensor)): tensor for tensor in tensors}

    def wrapped(value: Any) -> Any:
        if id(value) in originals:
            return originals[id(value)]
        return OnGpu(value) if isinstance(value, torch.Tensor) else value

    return tree_map(wrapped, result)


def _moved(
    module: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> Any:
    """Replace `torch.nn.Module._apply`: a wrapper's values cannot be swapped, so parameters become others.

    Those that modules share stay shared.
    """
    changed: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if id(parameter) not in changed:
                    changed[id(parameter)] = torch.nn.Parameter(
                        change(parameter.detach()), parameter.requires_grad
                    )
                part._parameters[name] = changed[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = change(buffer)
    return module


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> OnGpu:
    return OnGpu(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> OnGpu:
    return OnGpu(torch.empty(size, dtype=dtype, device="cpu"))


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    _held(target).copy_(_held(source))
    return target


_libraries: list[library.Library] = []


def register() -> None:
    """Register the backend, once in a process and before its first backward pass, which counts backends."""
    if not _libraries:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
        operations = library.Library("aten", "IMPL")
        operations.impl("empty_strided", _empty_strided, "PrivateUse1")
        operations.impl("empty.memory_format", _empty, "PrivateUse1")
        operations.impl("_copy_from", _copy_from, "PrivateUse1")
        # Autocast leaves types as they are.
        autocast = library.Library("_", "IMPL", "AutocastPrivateUse1")
        autocast.fallback(library.fallthrough_kernel)
        _libraries.extend((operations, autocast))


@contextmanager
def simulated() -> Iterator[None]:
    """Make the registered device usable."""
    with (
        mock.patch.object(torch.nn.Module, "_apply", _moved),
        # Inference mode hands composite operations over whole, which no tensor subclass can take.
        mock.patch.object(torch, "inference_mode", torch.no_grad),
        mock.patch.object(torch.accelerator, "synchronize"),
        _EveryOperation(),
    ):
        yield
