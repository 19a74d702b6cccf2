"""Models too large for one device: divided over a group of workers, or with activations computed again.

Parameters, gradients and optimiser state are divided by torch's FSDP2: each layer is whole on a device only
while it computes. A divided tensor is a ``DTensor``, whose shape is that of the whole. Its modules are
imported where something is divided: that takes a second, which most processes need not spend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nlgraft.basics.errors import ContractError


def layers_of(model: nn.Module) -> list[nn.Module]:
    """List the layers of any model: the members of its outermost lists of modules that have parts."""
    return list(dict.fromkeys(_layers(model)))


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        members = list(child) if isinstance(child, nn.ModuleList) else []
        # Norms and linear maps are too small to be gathered alone, and lists of lists have no forward.
        if members and all(any(part.children()) and not isinstance(part, nn.ModuleList) for part in members):
            yield from members
        else:
            yield from _layers(child)


def shard(
    module: nn.Module,
    layers: Iterable[nn.Module],
    device: torch.device,
    *,
    is_bf16: bool,
) -> None:
    """Divide a module over all workers, in place and onto their devices; each layer is gathered by itself.

    Args:
        module: On any device; the values on each worker are those of its own part.
        layers: Of the module; the rest of it stays whole during a step.
        device: Of this worker.
        is_bf16: Forward passes run under autocast, which then finds the weights of layers in bfloat16 and
            keeps no copies of them. The rest has fp32, for autocast to cast as without division.

    Raises:
        ContractError: A parameter has no axis along which it could be divided.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    scalars = [name for name, parameter in module.named_parameters() if not parameter.ndim]
    if scalars:
        raise ContractError(
            f"resources.sharding: full cannot divide {', '.join(scalars)}, which are single numbers; "
            "set resources.sharding to none"
        )
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    narrow = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=narrow if is_bf16 else MixedPrecisionPolicy())
    fully_shard(module, mesh=mesh)


@contextmanager
def wrapped(
    layers: Iterable[nn.Module],
    *,
    is_recomputed: bool,
    is_compiled: bool,
) -> Iterator[None]:
    """Run layers otherwise, with equal results up to rounding; afterwards they are as before.

    Args:
        layers: Of a model, which may be divided.
        is_recomputed: No activations are kept inside layers: their forward pass is run once more for the
            gradient.
        is_compiled: Layers are compiled by ``torch.compile`` when they first run. Layers by themselves: they
            have the same code, so that one compilation serves all, and lengths of sentences may vary.
    """
    layers = list(layers) if is_recomputed or is_compiled else []
    for layer in layers:
        forward = layer.forward
        if is_compiled:
            forward = torch.compile(forward, dynamic=True)
        if is_recomputed:
            forward = partial(checkpoint, forward, use_reentrant=False)
        vars(layer)["forward"] = forward
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def local(tensor: Tensor) -> Tensor:
    """Return this worker's part of a tensor [...], which shares its memory; the whole if undivided."""
    return tensor.to_local() if is_divided(tensor) else tensor  # type: ignore[operator]


def whole(tensor: Tensor) -> Tensor:
    """Gather a tensor [...] on its device if it is divided, whole again; every worker must call it."""
    return tensor.full_tensor() if is_divided(tensor) else tensor  # type: ignore[operator]


def is_divided(tensor: Tensor) -> bool:
    """Tell if a tensor [...] is one of a divided model, of which this worker has a part."""
    return hasattr(tensor, "full_tensor")


def divided_like(tensor: Tensor, value: Tensor) -> Tensor:
    """Divide the first worker's value [...] as a tensor is divided; every worker must call it."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]


def rows_of_part(rows: Tensor, tensor: Tensor) -> Tensor:
    """Select of a mask [V] the rows of this worker's part of a tensor [V, ...]."""
    if not is_divided(tensor):
        return rows
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    parts, rank = rows.chunk(mesh.size()), mesh.get_local_rank()
    return parts[rank] if rank < len(parts) else rows[:0]
