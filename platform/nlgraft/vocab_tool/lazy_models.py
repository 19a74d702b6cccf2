"""Compute with models whose values stay in their files: each operation reads the tensors that it needs.

So memory holds the tensors of one operation in single precision, whatever the size of the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import swap_tensors

from nlgraft.basics.errors import DataError
from nlgraft.vocab.plans.transfer_plan import TransferPlan
from nlgraft.vocab.surgery.exchange import Change, build_model, check_positions, find_changes, untie
from nlgraft.vocab.surgery.tensors import named_tensors
from nlgraft.vocab.surgery.token_ids import Sides
from nlgraft.vocab_tool.stored_checkpoints import StoredCheckpoint, without_values

Reader = Callable[[], Tensor]
_VIEWS = frozenset({"T", "mT", "H", "mH", "data"})
"""Properties of a tensor that hold its values."""
_SIZES = frozenset({"size", "dim", "numel", "__len__", "is_floating_point", "is_complex"})
"""Operations that need no values."""


@dataclass(frozen=True)
class LazyModel:
    """A model whose values are read when they are needed.

    Attributes:
        model: The model, in evaluation mode.
        readers: Function that reads a tensor as it is stored, by the identity of the model's; others have
            values.
        missing: Names of parameters that should be stored and are not; they are as a new model's.
    """

    model: Any
    readers: Mapping[int, Reader] = field(default_factory=dict)
    missing: Sequence[str] = ()

    @classmethod
    def of(cls, checkpoint: StoredCheckpoint) -> LazyModel:
        """Take the tensors of a checkpoint from its files."""
        model_tensors = dict(named_tensors(checkpoint.model))
        readers: dict[int, Reader] = {
            id(model_tensors[name]): partial(_stored, checkpoint, stored, tuple(model_tensors[name].shape))
            for stored, name in checkpoint.names.items()
            if name in model_tensors
        }
        names = [
            name for name, tensor in model_tensors.items() if tensor.is_meta and id(tensor) not in readers
        ]
        _initialise(checkpoint.model, {name: model_tensors[name] for name in names})
        computed = checkpoint.model._keys_to_ignore_on_load_missing or ()
        missing = [name for name in names if not any(re.search(pattern, name) for pattern in computed)]
        return cls(checkpoint.model.eval(), readers, missing)

    def read(self, tensor: Tensor) -> Tensor:
        """Read the values of a tensor of the model, in the precision in which they are stored."""
        read = self.readers.get(id(tensor))
        return tensor.detach() if read is None else read()

    @contextmanager
    def computing(self) -> Iterator[Any]:
        """Let the model compute, without gradients; in the context it is on the CPU in single precision."""
        with torch.no_grad(), _Reading(self.readers):
            yield self.model

    def exchanged(self, plan: TransferPlan, sides: Sides = "both") -> LazyModel:
        """Exchange the model's vocabulary; the new rows are computed when they are read.

        Raises:
            DataError: The plan belongs to another vocabulary.
            PaddingError: The model computes positions from its padding id, which the plan moves.
        """
        changes = find_changes(self.model, None, plan, sides)
        with without_values():
            new = build_model(self.model, changes.config)
        check_positions(new, changes, getattr(self.model.config, "pad_token_id", None))
        old = dict(named_tensors(self.model))
        ways = {name: changes.tensors.get(name, id(tensor)) for name, tensor in old.items()}
        numbers = {way: torch.tensor(number) for number, way in enumerate(dict.fromkeys(ways.values()))}
        untie(new, {name: numbers[way] for name, way in ways.items()})
        sources = {id(tensor): tensor for tensor in old.values()}
        readers: dict[int, Reader] = {}
        for name, tensor in named_tensors(new):
            way = ways[name]
            if isinstance(way, Change):
                readers[id(tensor)] = partial(_changed, self, sources[way.source], way, plan)
            else:
                readers[id(tensor)] = partial(self.read, sources[way])
        return LazyModel(new.eval(), readers)


@torch.no_grad()
def _initialise(model: Any, parameters: Mapping[str, Tensor]) -> None:
    """Give parameters of a model, by name, the values of a new one, which it draws or computes."""
    for parameter in {id(tensor): tensor for tensor in parameters.values()}.values():
        swap_tensors(parameter, torch.nn.Parameter(torch.empty(parameter.shape)))  # keeps ties
    with torch.random.fork_rng(devices=[]):
        for owner in dict.fromkeys(name.rpartition(".")[0] for name in parameters):
            # transformers has no public way to initialise a single module.
            model._init_weights(model.get_submodule(owner))


def _stored(checkpoint: StoredCheckpoint, name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = checkpoint.read(name)
    if tuple(tensor.shape) != shape:
        raise DataError(
            f"{checkpoint.directory / checkpoint.files[name]}: '{name}' has shape {tuple(tensor.shape)}, but "
            f"the model needs {shape}; config.json does not belong to these weights"
        )
    return tensor


def _changed(lazy: LazyModel, source: Tensor, change: Change, plan: TransferPlan) -> Tensor:
    return change.apply(plan, lazy.read(source))


class _Reading(TorchFunctionMode):
    """Replaces tensors of the model by their values in every operation."""

    def __init__(self, readers: Mapping[int, Reader]) -> None:
        super().__init__()
        self._readers = readers

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = func.__self__.__name__
            # On the meta device models would allocate their masks there; pretend that values are here.
            if id(args[0]) in self._readers and name in ("device", "dtype"):
                return torch.device("cpu") if name == "device" else torch.float32
            if name not in _VIEWS:
                return func(*args)
        kwargs = kwargs or {}
        if name in _SIZES:
            return func(*args, **kwargs)
        return func(*map(self._value, args), **{name: self._value(each) for name, each in kwargs.items()})

    def _value(self, argument: Any) -> Any:
        if type(argument) in (list, tuple):
            return type(argument)(map(self._value, argument))
        read = self._readers.get(id(argument)) if isinstance(argument, Tensor) else None
        if read is None:
            return argument
        tensor = read()
        return tensor.float() if tensor.is_floating_point() else tensor
