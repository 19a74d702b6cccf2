"""``nlgraft vocab apply``: give a checkpoint another vocabulary, from directory to directory."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from nlgraft.basics.errors import DataError
from nlgraft.text.files import refuse_used, write_json, written_at_once
from nlgraft.vocab.surgery.exchange import (
    TensorRows,
    count_embedding_parameters,
    exchange_vocabulary,
    find_vocabulary_tensors,
    input_table,
    named_tensors,
)
from nlgraft.vocab.surgery.token_ids import (
    LISTS,
    Sides,
    complete_roles,
    flat_ids,
    id_settings,
    successors,
    vocabulary_parts,
)
from nlgraft.vocab.tokenizers.loading import (
    DECODER_DIRECTORY,
    copy_tokenizer,
    find_tokenizer,
    finish_tokenizer,
    load_vocabulary,
    tokenizer_files,
)
from nlgraft.vocab.transfer_plan import NormReport, Provenance, TransferPlan, norm_report
from nlgraft.vocab_tool.checkpoints import (
    INDEX,
    StoredCheckpoint,
    has_safetensors,
    in_safetensors,
    open_weights,
)
from nlgraft.vocab_tool.checks import disagreeing_ids
from nlgraft.vocab_tool.plan_exchange import (
    EXCHANGE_RECORD,
    TOKENIZER_DIRECTORY,
)

SENTENCE_ENCODER_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "[0-9]*_*",
)
"""Files of sentence-transformers beside a checkpoint: the layers that follow it, and their settings."""


UNLIKELY_MULTIPLE, LARGEST_MULTIPLE = 64, 128
"""Power of two that few numbers have by chance; the largest that is kept (Megatron-LM's and Qwen's)."""


@dataclass(frozen=True)
class Applied:
    """A checkpoint whose vocabulary was exchanged.

    Attributes:
        out: Its directory.
        model: Its class.
        sides: Sides whose vocabulary was exchanged.
        method: The plan's method.
        old_rows: Rows of the exchanged table before.
        new_rows: Rows after.
        old_parameters: Parameters of all vocabulary tables before, tied ones once.
        new_parameters: Parameters of all vocabulary tables after.
        norms: Row norms of the exchanged input table.
        notes: Remarks for the user.
    """

    out: str
    model: str
    sides: str
    method: str
    old_rows: int
    new_rows: int
    old_parameters: int
    new_parameters: int
    norms: NormReport
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert the result to JSON values."""
        return asdict(self)

    def to_text(self) -> str:
        """Format the result for reading."""
        return "\n".join(
            [
                f"{self.model}, {self.method}, sides: {self.sides}",
                f"  rows {self.old_rows} -> {self.new_rows}",
                f"  vocabulary parameters {self.old_parameters} -> {self.new_parameters}",
                f"  {self.norms.summary}",
                f"saved: {self.out}",
            ]
        )


def apply_plan(
    plan_directory: Path,
    model: str,
    out: Path,
    sides: Sides = "both",
    multiple: int | None = None,
) -> Applied:
    """Exchange the vocabulary of a checkpoint, file by file, and save it with its tokenizer.

    Args:
        plan_directory: Directory that ``plan_transfer`` wrote.
        model: A ``transformers`` checkpoint: a directory or a name on the hub.
        out: Directory of the new checkpoint; missing or empty.
        sides: Side whose vocabulary is exchanged, of an encoder-decoder.
        multiple: Exchanged tables get rows without a token, up to a multiple of this number; None for the
            one that the old table has (``padding_multiple``).

    Raises:
        DataError: Plan, model and sides do not belong together, or ``out`` is in use.
    """
    refuse_used(out)
    plan = TransferPlan.load(plan_directory)
    old_tokenizers = _old_tokenizers(model)
    if old_tokenizers is not None:
        # A plan has one vocabulary; that of the decoder counts unless only the encoder's is exchanged.
        _check_tokenizer(plan, old_tokenizers[0 if sides == "encoder" else 1], model)
    side = "encoder" if sides == "encoder" else "decoder"
    with written_at_once(out) as directory, in_safetensors(model, out) as checkpoint:
        checkpoint.refuse_missing_tables()
        old = checkpoint.model
        planned, plan = plan, complete_roles(plan, old.config)
        old_table = input_table(old, side)
        if multiple is None:
            multiple = padding_multiple(len(old_table), len(plan.old_surfaces))
        # Warnings become notes, so that they also reach readers of the JSON.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            new = exchange_vocabulary(old, plan, sides=sides, multiple=multiple)
        write_model(checkpoint, new, directory)
        notes = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
        if not has_safetensors(model):
            notes.append(
                "the weights are in PyTorch's old format: the whole model was loaded to convert them"
            )
        notes += [
            f"'{plan.new_surfaces[row]}' gets the row of '{plan.old_surfaces[plan.matrix[row].indices[0]]}', "
            "to which the configuration gives its role"
            for row in np.flatnonzero(planned.provenance != plan.provenance).tolist()
        ]
        old_roles = {} if sides == "encoder" else planned.old_roles
        notes += _record_exchange(old, new, plan, old_roles, directory)
        notes += _dense_note(plan, old)
        notes += _save_tokenizers(plan_directory, plan, old_tokenizers, directory, sides)
        if Path(model).is_dir():
            _copy_sentence_encoder(Path(model), directory)
        new_table = input_table(new, side)
        return Applied(
            out=str(out),
            model=type(old).__name__,
            sides=sides,
            method=plan.method,
            old_rows=len(old_table),
            new_rows=len(new_table),
            old_parameters=count_embedding_parameters(old),
            new_parameters=count_embedding_parameters(new),
            norms=norm_report(plan, TensorRows(old_table), TensorRows(new_table)),
            notes=tuple(notes),
        )


def write_model(checkpoint: StoredCheckpoint, new: Any, out: Path) -> None:
    """Write a checkpoint's model with another vocabulary, without its tokenizer.

    Tensors keep their names and files; a file in which nothing changes is copied. So memory holds the tensors
    of one file and the new tables.

    Args:
        checkpoint: The old checkpoint.
        new: Its model with another vocabulary, as ``exchange_vocabulary`` makes it.
        out: An empty directory.
    """
    tensors, old = dict(named_tensors(new)), dict(named_tensors(checkpoint.model))
    changed = {name for name, tensor in tensors.items() if tensor.data_ptr() != old[name].data_ptr()}
    # a name that the new model lacks goes, unless the old one does not know it either
    names = {stored: name for stored, name in checkpoint.names.items() if name in tensors or name not in old}
    files = {stored: file for stored, file in checkpoint.files.items() if stored in names}
    tables = find_vocabulary_tensors(checkpoint.model).all
    table_file = next(checkpoint.files[stored] for stored, name in checkpoint.names.items() if name in tables)
    in_files = {id(old[name]) for name in checkpoint.names.values() if name in old}
    for name in _unstored(new, {*names.values()}):
        if id(old[name]) in in_files:
            names[name], files[name] = name, table_file
    num_bytes = 0
    for file in dict.fromkeys(files.values()):
        source = checkpoint.directory / file
        stored_here = [stored for stored, place in files.items() if place == file]
        with open_weights(source) as opened:
            part: dict[str, Tensor] = {
                stored: tensors[names[stored]] if names[stored] in tensors else opened.get_tensor(stored)
                for stored in stored_here
            }
            num_bytes += sum(tensor.nbytes for tensor in part.values())
            if changed.isdisjoint(names[stored] for stored in stored_here):
                shutil.copyfile(source, out / file)
            else:
                save_file(_apart(part), out / file, metadata=opened.metadata())
    if checkpoint.index is not None:
        metadata = dict(checkpoint.index.get("metadata") or {}) | {"total_size": num_bytes}
        if "total_parameters" in metadata:
            metadata["total_parameters"] = new.num_parameters()
        index = {"metadata": metadata, "weight_map": dict(sorted(files.items()))}
        write_json(out / INDEX, index)
    new.config.architectures = [type(new).__name__]
    for config in (new.config, getattr(new, "generation_config", None)):
        if config is not None:
            config.save_pretrained(out)


def _unstored(new: Any, stored: set[str]) -> list[str]:
    """List the names that a file needs beside some: one of each other tensor, and those that are untied.

    transformers ties a name that is not in the files, and leaves apart what the configuration ties if both
    are there (T5's sides).
    """
    tensors = dict(named_tensors(new))
    pairs = new.get_expanded_tied_weights_keys(all_submodels=True).items()
    untied: set[str] = set()
    for name, source in pairs:
        if tensors.get(name) is not tensors.get(source):
            untied |= {name, source}
    written = {id(tensors[name]) for name in stored & tensors.keys()}
    names = []
    for name in sorted(tensors.keys() - stored):
        if name in untied or id(tensors[name]) not in written:
            names.append(name)
            written.add(id(tensors[name]))
    return names


def _apart(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy what two names share, which safetensors refuses."""
    addresses: set[int] = set()
    apart = {}
    for name, tensor in part.items():
        apart[name] = tensor.clone() if tensor.data_ptr() in addresses else tensor
        addresses.add(tensor.data_ptr())
    return apart


def padding_multiple(num_rows: int, num_tokens: int) -> int:
    """Find the multiple up to which a table was filled with rows without a token: a power of two, or 1.

    A number of rows that chance explains as well (a small power, and more rows than it asks for) gives 1.
    """
    if num_rows <= num_tokens:
        return 1
    power = min(num_rows & -num_rows, LARGEST_MULTIPLE)
    return power if num_rows - num_tokens < power or power >= UNLIKELY_MULTIPLE else 1


def _old_tokenizers(model: str) -> tuple[Path, Path] | None:
    """Find the tokenizers of encoder and decoder, usually the same; None when the checkpoint has none."""
    try:
        root = find_tokenizer(model)
    except DataError:
        return None
    if not tokenizer_files(root):
        return None
    decoder_directory = root / DECODER_DIRECTORY
    return root, decoder_directory if decoder_directory.is_dir() else root


def _check_tokenizer(plan: TransferPlan, directory: Path, model: str) -> None:
    """Refuse a plan for another tokenizer, since every row would belong to another string."""
    surfaces = load_vocabulary(directory).surfaces
    pairs = zip(plan.old_surfaces, surfaces, strict=False)
    different = next((i for i, (planned, surface) in enumerate(pairs) if planned != surface), None)
    if different is not None:
        raise DataError(
            f"the plan is not for the tokenizer of {model}: id {different} is "
            f"'{plan.old_surfaces[different]}' in the plan and '{surfaces[different]}' in the model's; "
            "make the plan with --old of this model"
        )
    if len(surfaces) != len(plan.old_surfaces):
        raise DataError(
            f"the plan is not for the tokenizer of {model}: it has {len(plan.old_surfaces)} old ids, the "
            f"model's tokenizer {len(surfaces)}; make the plan with --old of this model"
        )


def _record_exchange(
    old: Any,
    new: Any,
    plan: TransferPlan,
    old_roles: Mapping[str, int],
    directory: Path,
) -> list[str]:
    """Tell which settings of the configurations lost ids; record that beside the weights.

    Also recorded are the tokens of the old configurations in roles which the old tokenizer gave to others.
    """
    emptied, kept, ids = _lost_settings(old, new), successors(plan), range(len(plan.old_surfaces))
    record = {
        # ids that no token had (-1 for no padding) named nothing
        name: {"tokens": tokens, "num_ids": len(flat_ids(value))}
        for name, value in emptied.items()
        if name not in LISTS
        and (tokens := [plan.old_surfaces[i] for i in flat_ids(value) if i in ids and i not in kept])
    }
    disagreeing: dict[str, list[str]] = {}
    for role, role_ids, _ in disagreeing_ids(old, old_roles):
        new_ids = [kept[i] for i in role_ids if i in kept]
        disagreeing.setdefault(role, []).extend(plan.new_surfaces[i] for i in new_ids)
    if record or disagreeing:
        document = {"lost": record, "disagreeing": disagreeing}
        write_json(directory / EXCHANGE_RECORD, document)
    named = ", ".join(f"{name} {value}" for name, value in emptied.items())
    return [f"the new vocabulary has no token for {named} of the configuration"] if emptied else []


def _lost_settings(old: Any, new: Any) -> dict[str, Any]:
    """Return the settings of the old configurations that the new ones lack, or that have fewer ids there."""
    pairs = [*zip(vocabulary_parts(old.config), vocabulary_parts(new.config), strict=True)]
    if getattr(new, "generation_config", None) is not None:
        pairs.append((old.generation_config, new.generation_config))
    return {
        name: value
        for old_config, new_config in pairs
        for name, value in id_settings(old_config).items()
        if (new_value := getattr(new_config, name, None)) is None
        or (isinstance(value, list) and len(new_value) < len(value))
    }


def _dense_note(plan: TransferPlan, model: Any) -> list[str]:
    head = model.get_output_embeddings()
    is_tied = head is None or head.weight is input_table(model, "decoder")
    if is_tied or not len(plan.rows(Provenance.DENSE)):
        return []
    return [f"method '{plan.method}' made vectors for the input table; the untied output table gets the same"]


def _save_tokenizers(
    plan_directory: Path,
    plan: TransferPlan,
    old: tuple[Path, Path] | None,
    directory: Path,
    sides: Sides,
) -> list[str]:
    """Save the encoder's tokenizer (or the only one) at the root, a different decoder's below."""
    new = plan_directory / TOKENIZER_DIRECTORY
    side = 0 if sides == "encoder" else 1
    if sides == "encoder" and old is not None:
        copy_tokenizer(old[1], directory / DECODER_DIRECTORY)
    if sides == "decoder" and old is not None:
        copy_tokenizer(old[0], directory)
    if not new.is_dir():
        return ["the plan has no tokenizer beside it; save the new tokenizer into the checkpoint yourself"]
    place = directory / DECODER_DIRECTORY if sides == "decoder" else directory
    copy_tokenizer(new, place)
    notes = [] if old is None else finish_tokenizer(place, old[side], successors(plan))
    if sides != "both":
        notes.append(f"the decoder's tokenizer is in {DECODER_DIRECTORY}/, the encoder's beside the weights")
    return notes


def _copy_sentence_encoder(model: Path, directory: Path) -> None:
    if not (model / "modules.json").is_file():
        return
    for path in sorted({path for pattern in SENTENCE_ENCODER_FILES for path in model.glob(pattern)}):
        if path.is_dir():
            shutil.copytree(path, directory / path.name)
        else:
            shutil.copyfile(path, directory / path.name)
