"""Weights on disk and between stages: safetensors with tied tensors, carry-over, averaging."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError, StoreError, nearest
from nlgraft.text.files import write_json

MODEL_FILE = "model.safetensors"
Weights = dict[str, Tensor]


def _storage_key(tensor: Tensor) -> tuple[int, int, torch.Size]:
    # Views of one storage are the same tensor only if they begin at the same place with the same shape.
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), tensor.shape


def tied_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Map each further name of a shared tensor to its first name in sorted order."""
    first: dict[tuple[int, int, torch.Size], str] = {}
    aliases = {}
    for name in sorted(state):
        # Empty tensors all have a null address without being tied.
        if state[name].numel() == 0:
            continue
        key = _storage_key(state[name])
        if key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
    return aliases


def save_weights(state: Mapping[str, Tensor], path: Path) -> None:
    """Write named tensors, each of its own shape, as safetensors; a tied tensor is written once."""
    aliases = tied_names(state)
    tensors = {
        name: tensor.detach().to("cpu").contiguous()
        for name, tensor in sorted(state.items())
        if name not in aliases
    }
    save_file(tensors, path, metadata={"tied": json.dumps(aliases, sort_keys=True)})


def load_weights(path: Path) -> Weights:
    """Read tensors written by ``save_weights``, under every name of a tied tensor, on the CPU.

    Raises:
        StoreError: The file is missing or no safetensors file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            aliases = json.loads((file.metadata() or {}).get("tied", "{}"))
        weights = load_file(path)
    except Exception as error:
        raise StoreError(f"{path}: no readable safetensors file ({error})") from error
    for alias, name in aliases.items():
        weights[alias] = weights[name]
    return weights


def save_model(model: nn.Module, directory: Path) -> None:
    """Write a model's weights into an artifact as ``model.safetensors``."""
    save_weights(model.state_dict(), directory / MODEL_FILE)


def load_model(model: nn.Module, directory: Path) -> None:
    """Load an artifact's weights into a model of the same architecture.

    Raises:
        StoreError: The file is missing or unreadable.
        ContractError: Names or shapes differ.
    """
    carry_over(model, load_weights(directory / MODEL_FILE))


@dataclass(frozen=True)
class CarryReport:
    """Outcome of carrying weights from one stage to the next.

    Attributes:
        carried: Names whose tensor was copied, bit for bit.
        initialised: Names of the model that kept their fresh initialisation.
        dropped: Names of the earlier stage that the model does not use.
    """

    carried: list[str]
    initialised: list[str]
    dropped: list[str]

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        write_json(path, asdict(self))


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


@torch.no_grad()
def carry_over(
    model: nn.Module,
    earlier: Mapping[str, Tensor],
    *,
    fresh: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> CarryReport:
    """Copy an earlier stage's weights into a model by name; anything undeclared is an error.

    Args:
        model: Freshly initialised; changed in place.
        earlier: Tensors of the earlier stage.
        fresh: Patterns of names that keep their initialisation (new parts, parts to reset).
        drop: Patterns of earlier names that are not used.

    Raises:
        ContractError: A name is missing, left over or of another shape, and no pattern allows it; or two
            names that the model ties would get different weights.

    Source: Huang et al. (2021), section 2.2 (gradual finetuning).
    """
    state = model.state_dict()
    carried = sorted(name for name in state if name in earlier and not _matches(fresh, name))
    initialised = sorted(set(state) - set(carried))
    dropped = sorted(set(earlier) - set(carried))
    problems = [
        f"'{name}' is not among the earlier weights. {nearest(name, sorted(earlier))[:200]}"
        for name in initialised
        if not _matches(fresh, name)
    ]
    problems += [
        f"'{name}' has no place in the model; name it in drop"
        for name in dropped
        if not _matches([*drop, *fresh], name)
    ]
    problems += [
        f"'{name}' is {tuple(earlier[name].shape)} earlier and {tuple(state[name].shape)} now"
        for name in carried
        if earlier[name].shape != state[name].shape
    ]
    for alias, name in tied_names(state).items():
        both = alias in carried and name in carried
        if both and not torch.equal(earlier[alias], earlier[name]):
            problems.append(f"'{alias}' and '{name}' are tied now but had different weights")
    if problems:
        raise ContractError("carry-over: " + "; ".join(problems))
    for name in carried:
        # A state dict shares memory with its model.
        state[name].copy_(earlier[name])
    return CarryReport(carried, initialised, dropped)


def average_weights(snapshots: Sequence[Mapping[str, Tensor]]) -> Weights:
    """Average weights of the same names and shapes, oldest first, name by name.

    Means are computed in fp64 and returned in the original type; integer tensors and tensors that are equal
    in all snapshots are the newest's own.

    Raises:
        ContractError: There is nothing to average, or the names differ.

    Source: Vaswani et al. (2017), section 6.1.
    """
    if not snapshots:
        raise ContractError("no snapshots to average; was average_last larger than 0?")
    newest = snapshots[-1]
    if any(set(snapshot) != set(newest) for snapshot in snapshots):
        raise ContractError("the snapshots to average have different names")
    averaged = {}
    for name, tensor in newest.items():
        tensors = [snapshot[name] for snapshot in snapshots]
        if not tensor.is_floating_point() or all(torch.equal(tensor, other) for other in tensors):
            averaged[name] = tensor
        else:
            averaged[name] = torch.stack([other.double() for other in tensors]).mean(0).to(tensor.dtype)
    return averaged
