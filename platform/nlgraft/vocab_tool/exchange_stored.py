"""Exchange the vocabulary of a checkpoint in its files, one after the other.

Files without a tensor of the vocabulary are copied; others are read, changed and written. So memory holds the
tensors of one file and the new tables, whatever the size of the model.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nlgraft.basics.errors import DataError
from nlgraft.vocab.plans.transfer_plan import NormReport, TransferPlan, norm_report
from nlgraft.vocab.surgery.exchange import Change, build_model, check_positions, find_changes
from nlgraft.vocab.surgery.tensors import TensorRows, find_vocabulary_tensors, input_table, named_tensors
from nlgraft.vocab.surgery.token_ids import Sides
from nlgraft.vocab_tool.stored_checkpoints import INDEX, StoredCheckpoint, open_weights

LENGTH_BYTES = 8
"""Bytes at the start of a file of weights that hold the length of its header."""


@dataclass(frozen=True)
class ExchangedCheckpoint:
    """A checkpoint that was written.

    Attributes:
        config: Its configuration.
        generation_config: Its generation configuration; None if the model has none.
        new_rows: Rows of the exchanged input table, those without a token included.
        new_parameters: Parameters of all vocabulary tables, tied ones once.
        norms: Row norms of the exchanged input table.
    """

    config: Any
    generation_config: Any
    new_rows: int
    new_parameters: int
    norms: NormReport


@dataclass(frozen=True)
class _NewTensor:
    """A tensor to write: the stored name of the one that it is made of, the way, and its shape."""

    source: str
    change: Change
    shape: tuple[int, ...]


def exchange_stored(
    checkpoint: StoredCheckpoint, plan: TransferPlan, out: Path, sides: Sides = "both", multiple: int = 1
) -> ExchangedCheckpoint:
    """Write a checkpoint with another vocabulary, without its tokenizer.

    Args:
        checkpoint: The old checkpoint; it stays unchanged.
        plan: Origin of each new row.
        out: An empty directory.
        sides: Side whose vocabulary is exchanged, of an encoder-decoder.
        multiple: Exchanged tables get rows without a token, up to a multiple of this number.

    Raises:
        DataError: Checkpoint, plan and sides do not belong together, or a file is broken.
        PaddingError: The model computes positions from its padding id, which the plan moves.
    """
    model = checkpoint.model
    changes = find_changes(model, getattr(model, "generation_config", None), plan, sides, multiple)
    # The new model is needed for its shapes and ties alone, not for values.
    with torch.device("meta"):
        new = build_model(model, changes.config)
    check_positions(new, changes, getattr(model.config, "pad_token_id", None))
    side = "encoder" if sides == "encoder" else "decoder"
    table = checkpoint.stored_name(input_table(model, side))
    new_tensors = _wanted_tensors(checkpoint, new, changes.tensors)
    changed = {name for name, in_model in checkpoint.names.items() if in_model in changes.tensors}
    weight_map: dict[str, str] = {}
    norms = None
    for file in dict.fromkeys(checkpoint.files.values()):
        kept = [n for n, place in checkpoint.files.items() if place == file and n not in changed]
        weight_map |= dict.fromkeys([*kept, *new_tensors[file]], file)
        source, target = checkpoint.directory / file, out / file
        if changed.isdisjoint(n for n, place in checkpoint.files.items() if place == file):
            shutil.copyfile(source, target)
        else:
            norms = _rewrite(source, target, kept, new_tensors[file], plan, table) or norms
    if checkpoint.index is not None:
        _write_index(out, checkpoint.index, weight_map, new)
    changes.config.architectures = [type(model).__name__]
    changes.config.save_pretrained(out)
    if changes.generation_config is not None:
        changes.generation_config.save_pretrained(out)
    assert norms is not None, "the table of the side is among the changed tensors"
    return ExchangedCheckpoint(
        changes.config,
        changes.generation_config,
        len(input_table(new, side)),
        _count_parameters(model, new, changes.tensors),
        norms,
    )


def _wanted_tensors(
    checkpoint: StoredCheckpoint, new: Any, changes: Mapping[str, Change]
) -> defaultdict[str, dict[str, _NewTensor]]:
    """List the tensors to write into each file, by name: one for each tensor, where names are tied.

    Names keep the notation of the files. Names that the configuration ties, but that get different tensors
    (T5's sides), are all written: transformers then leaves them apart.
    """
    stored = {in_model: name for name, in_model in checkpoint.names.items()}
    sources = {id(tensor): tensor for _, tensor in named_tensors(checkpoint.model)}
    groups: defaultdict[int, list[str]] = defaultdict(list)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in named_tensors(new):
        if name in changes:
            groups[id(tensor)].append(name)
            shapes[name] = tuple(tensor.shape)
    new_tensors: defaultdict[str, dict[str, _NewTensor]] = defaultdict(dict)
    for names in groups.values():
        # One name is enough for a tied tensor; transformers ties the others when it loads the model.
        if len({changes[name] for name in names}) == 1:
            names = [name for name in names if name in stored] or names[:1]
        for name in names:
            source = checkpoint.stored_name(sources[changes[name].source])
            made = _NewTensor(source, changes[name], shapes[name])
            new_tensors[checkpoint.files[source]][stored.get(name, name)] = made
    return new_tensors


def _rewrite(
    source: Path,
    target: Path,
    kept: list[str],
    new_tensors: Mapping[str, _NewTensor],
    plan: TransferPlan,
    table: str,
) -> NormReport | None:
    """Write a file with new tensors; returns the norms of the input table, if it is here."""
    norms = None
    made: dict[Change, Tensor] = {}
    with open_weights(source) as file:
        tensors = {name: file.get_tensor(name) for name in kept}
        for name, entry in new_tensors.items():
            if entry.change in made:
                tensors[name] = made[entry.change].clone()  # safetensors refuses two names of one tensor
                continue
            old = file.get_tensor(entry.source)
            tensors[name] = made[entry.change] = new = _changed(source, entry, old, plan)
            if entry.source == table and entry.change.is_exchanged:
                norms = norm_report(plan, TensorRows(old), TensorRows(new))
        save_file(tensors, target, metadata=file.metadata())
    return norms


def _changed(file: Path, entry: _NewTensor, old: Tensor, plan: TransferPlan) -> Tensor:
    if not old.is_floating_point():
        raise DataError(
            f"{file}: '{entry.source}' holds {old.dtype}, a quantised table, of which no rows can be made; "
            "exchange the vocabulary before the model is quantised"
        )
    new = entry.change.apply(plan, old)
    if tuple(new.shape) != entry.shape:
        raise DataError(
            f"{file}: '{entry.source}' of shape {tuple(old.shape)} becomes {tuple(new.shape)}, but the model "
            f"needs {entry.shape}; config.json does not belong to these weights"
        )
    return new


def _write_index(out: Path, old: Mapping[str, Any], weight_map: Mapping[str, str], new: Any) -> None:
    metadata = dict(old.get("metadata") or {})
    metadata["total_size"] = sum(_tensor_bytes(out / file) for file in set(weight_map.values()))
    if "total_parameters" in metadata:
        metadata["total_parameters"] = new.num_parameters()
    document = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    (out / INDEX).write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def _tensor_bytes(file: Path) -> int:
    """Size of a file of weights without its header."""
    with file.open("rb") as stream:
        header = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    return file.stat().st_size - LENGTH_BYTES - header


def _count_parameters(model: Any, new: Any, changes: Mapping[str, Change]) -> int:
    """Count the parameters of all new vocabulary tables, those with the same change once."""
    vocabulary_tensors = find_vocabulary_tensors(model)
    tables = vocabulary_tensors.encoder | vocabulary_tensors.decoder | vocabulary_tensors.output
    sizes = {changes[name]: tensor.numel() for name, tensor in named_tensors(new) if name in tables}
    return sum(sizes.values())
