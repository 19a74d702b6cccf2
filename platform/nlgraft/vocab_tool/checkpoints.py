"""Checkpoints on disk, opened with the class that their configuration names.

The weights stay in their files, which are mapped into memory: the system reads what an operation needs, and
drops what others need more. So a model may be larger than the memory.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_index
from nlgraft.vocab.surgery.exchange import (
    fill,
    find_vocabulary_tensors,
    input_table,
    named_tensors,
    untie,
    without_values,
)
from nlgraft.vocab.surgery.token_ids import vocabulary_parts
from nlgraft.vocab.tokenizers.loading import find_files
from nlgraft.vocab.tokenizers.tokenizer_json import MAX_TOKENS
from nlgraft.vocab.transfer_plan import Array

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""Weights in one file; places of weights in several files."""
OLD_INDEX = "pytorch_model.bin.index.json"
"""The same for weights in PyTorch's old format."""
_MAX_REASON_CHARACTERS = 300
_HALF = (torch.float16, torch.bfloat16)
CHECKPOINT_FILES = ("config.json", "generation_config.json", INDEX, "model*.safetensors")


def load_checkpoint(directory: str | Path) -> Any:
    """Load a checkpoint whole, a directory or a name on the hub, in evaluation mode and stored precision.

    Raises:
        DataError: The directory holds no checkpoint that transformers knows, its weights lack a vocabulary
            table, or the configuration does not name the class of the weights.
    """
    config, model_type = _class_of(directory)
    for name in (INDEX, OLD_INDEX):
        if (Path(directory) / name).is_file():
            read_index(Path(directory) / name)
    try:
        model, info = model_type.from_pretrained(directory, dtype="auto", output_loading_info=True)
    except Exception as error:  # an old file of weights is a pickle: damaged, it may raise anything
        raise _not_a_checkpoint(directory, error) from error
    missing = sorted(find_vocabulary_tensors(model).all & info["missing_keys"])
    if missing:
        raise DataError(f"{directory}: no weights for {', '.join(missing)}; fetch the checkpoint again")
    if not config.architectures:
        _refuse_lost(directory, model, info["unexpected_keys"])
    return model.eval()


def _class_of(directory: str | Path) -> tuple[Any, Any]:
    """Read a configuration; with the class that it names, or ``AutoModel``."""
    import transformers  # takes seconds

    try:
        config = transformers.AutoConfig.from_pretrained(directory)
        names = config.architectures
        model_type = getattr(transformers, names[0]) if names else transformers.AutoModel
    except (OSError, ValueError, AttributeError) as error:
        raise _not_a_checkpoint(directory, error) from error
    for part in vocabulary_parts(config):
        size = getattr(part, "vocab_size", None)
        if size is not None and not (isinstance(size, int) and 0 < size <= MAX_TOKENS):
            raise DataError(
                f"{directory}: vocab_size of config.json is {size!r}, allowed is 1 to {MAX_TOKENS:,}; "
                "correct it, or fetch the checkpoint again"
            )
    return config, model_type


def _not_a_checkpoint(directory: str | Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:_MAX_REASON_CHARACTERS]
    return DataError(f"{directory}: not a checkpoint that transformers can load ({reason})")


def _refuse_lost(
    directory: str | Path,
    model: Any,
    names: set[str],
) -> None:
    """Refuse weights of which a configuration without a class would lose some."""
    if names:
        raise DataError(
            f"{directory}: config.json names no architecture, and {type(model).__name__} has no "
            f'\'{sorted(names)[0]}\'; write the class into config.json ("architectures": ["..."])'
        )


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint whose weights stay in their files.

    Attributes:
        directory: Its directory.
        model: The model, in evaluation mode. Its tensors are the files', mapped into memory.
        files: File of each tensor, by its name in the files.
        names: Name of each tensor in the model, by its name in the files; the model's may be newer.
        index: The index of several files; None for a single one.
        missing: Names of parameters that should be stored and are not; they are as a new model's.
    """

    directory: Path
    model: Any
    files: Mapping[str, str]
    names: Mapping[str, str]
    index: Mapping[str, Any] | None
    missing: Sequence[str]

    @classmethod
    def open(cls, name: str | Path) -> StoredCheckpoint:
        """Open a checkpoint in safetensors, a directory or a name on the hub.

        Raises:
            DataError: There is none, transformers does not know it, or weights and configuration disagree.
        """
        directory = find_files(name, CHECKPOINT_FILES)
        files, index = _files(directory)
        model = _empty_model(directory)
        names = _model_names(model, files)
        if not model.config.architectures:
            expected = {name for name, _ in named_tensors(model)}
            _refuse_lost(directory, model, {*names.values()} - expected)
        state: dict[str, Tensor] = {}
        for file in dict.fromkeys(files.values()):
            with open_weights(directory / file) as opened:
                stored = [stored for stored, place in files.items() if place == file]
                state |= {names[stored_name]: opened.get_tensor(stored_name) for stored_name in stored}
        untie(model, state)
        missing = fill(model, state, str(directory))
        _initialise(model, missing)
        computed = model._keys_to_ignore_on_load_missing or ()
        missing = [name for name in missing if not any(re.search(pattern, name) for pattern in computed)]
        return cls(directory, model.eval(), files, names, index, missing)

    def refuse_missing_tables(self) -> None:
        """Refuse a checkpoint without a table or bias of its vocabulary, which would be a new model's.

        Raises:
            DataError: One is missing.
        """
        missing = sorted(find_vocabulary_tensors(self.model).all.intersection(self.missing))
        if missing:
            raise DataError(
                f"{self.directory}: no weights for '{missing[0]}' of {type(self.model).__name__}; load the "
                "checkpoint with transformers and save it with save_pretrained, if that knows its names"
            )


@torch.no_grad()
def _initialise(model: Any, names: Sequence[str]) -> None:
    """Give parameters without values those of a new model, which it draws or computes."""
    tensors = dict(named_tensors(model))
    fill(model, {name: torch.empty(tensors[name].shape) for name in names}, "")
    with torch.random.fork_rng(devices=[]):
        for owner in dict.fromkeys(name.rpartition(".")[0] for name in names):
            # transformers has no public way to initialise a single module.
            model._init_weights(model.get_submodule(owner))


class SinglePrecision(TorchFunctionMode):
    """Computes with numbers in half precision as if they were in single; they are converted one by one."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__self__", None) is Tensor.dtype:  # models ask a weight which type to compute in
            return _single(func(*args))
        return func(*tree_map(_single, args), **tree_map(_single, kwargs or {}))


def _single(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float32 if value in _HALF else value
    if isinstance(value, Tensor) and value.dtype in _HALF:
        return value.float()
    return value


@contextmanager
def in_safetensors(name: str, beside: Path | None = None) -> Iterator[StoredCheckpoint]:
    """Open a checkpoint, a directory or a name on the hub.

    One in PyTorch's old format is loaded whole and saved first, in a directory ``beside`` another.

    Raises:
        DataError: There is none, or transformers does not know it.
    """
    if has_safetensors(name):
        yield StoredCheckpoint.open(name)
        return
    prefix, parent = (None, None) if beside is None else (f".{beside.name}.", beside.parent)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as directory:
        load_checkpoint(name).save_pretrained(directory)
        yield StoredCheckpoint.open(directory)


def has_safetensors(name: str | Path) -> bool:
    """Return True if a checkpoint, a directory or a name on the hub, has its weights in safetensors."""
    directory = find_files(name, CHECKPOINT_FILES)
    return any((directory / file).is_file() for file in (SINGLE, INDEX))


def open_weights(path: Path) -> Any:
    """Open a file of weights as a context manager.

    Raises:
        DataError: It is missing or broken.
    """
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read ({error}); fetch the checkpoint again") from error


def _files(directory: Path) -> tuple[dict[str, str], dict[str, Any] | None]:
    if (directory / SINGLE).is_file():
        with open_weights(directory / SINGLE) as file:
            return dict.fromkeys(file.keys(), SINGLE), None
    if not (directory / INDEX).is_file():
        raise DataError(f"{directory}: no weights in safetensors ({SINGLE} or {INDEX})")
    index = read_index(directory / INDEX)
    return dict(index["weight_map"]), index


def _empty_model(directory: Path) -> Any:
    """Build a checkpoint's model without values, with its generation configuration, if it has one."""
    import transformers

    config, model_type = _class_of(directory)
    try:
        with without_values():
            model = model_type(config) if config.architectures else model_type.from_config(config)
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise _not_a_checkpoint(directory, error) from error
    has_own = getattr(model, "generation_config", None) is not None
    if has_own and (directory / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(directory)
    return model


def _model_names(model: Any, stored: Mapping[str, str]) -> dict[str, str]:
    """Map names in the files to the model's, as transformers does when it loads them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    model_tensors = dict(named_tensors(model))
    names: dict[str, str] = {}
    for name in stored:
        renamed, _ = rename_source_key(name, renamings, converters, model.base_model_prefix, model_tensors)
        names[name] = renamed if renamed in model_tensors else name
    return names


def embedding_rows(model: str) -> Array:
    """Read the input embeddings of a checkpoint, the decoder's if there are two sides; float32, [R, d]."""
    with in_safetensors(model) as checkpoint:
        checkpoint.refuse_missing_tables()
        return input_table(checkpoint.model, "decoder").detach().float().numpy()
