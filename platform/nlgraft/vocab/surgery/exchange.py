"""Exchange the vocabulary of a Hugging Face model, of encoder, decoder or both.

A new model is built from the new configuration and filled: vocabulary tensors by a ``TransferPlan``, all
others bit for bit from the old model. So the result always loads from its own configuration.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from nlgraft.errors import DataError, PaddingError
from nlgraft.vocab.plans.plan import GAP_BIAS, Provenance, TransferPlan
from nlgraft.vocab.surgery.tensors import (
    VocabularyTensors,
    find_vocabulary_tensors,
    is_encoder_decoder,
    named_tensors,
)
from nlgraft.vocab.surgery.token_ids import Sides, update_token_ids


def exchange_vocabulary(model: Any, plan: TransferPlan, *, sides: Sides = "both") -> Any:
    """Build the same model with another vocabulary.

    Args:
        model: A ``transformers`` model; not changed.
        plan: Origin of each new row.
        sides: Side whose vocabulary is exchanged, for encoder-decoders.

    Returns:
        The new model, in evaluation mode and the old one's dtype, with updated token ids in its configuration
        and generation configuration. Shared input and output tables stay shared, unless the architecture has
            one
        vocabulary size for both sides and only one is exchanged: then all tables get as many rows as the
            larger
        vocabulary, none is tied any more, and a warning says so.

    Raises:
        DataError: A side was requested of a one-sided model, or the plan belongs to another tokenizer.
        PaddingError: The model computes positions from its padding id, which the plan moves.
    """
    if not is_encoder_decoder(model) and sides != "both":
        raise DataError(
            f"{type(model).__name__} has one vocabulary; sides {sides!r} applies to encoder-decoders only, "
            "use 'both'"
        )
    tensors = find_vocabulary_tensors(model)
    config = copy.deepcopy(model.config)
    num_padded = _set_vocab_size(config, model, len(plan), sides)
    update_token_ids(config, plan, sides)
    _check_padding(config, model)
    shifts = _shift_positions(config, model, tensors)
    new = _build(model, config)
    _check_shifts(new, shifts, model.config.pad_token_id)
    state = _new_state(model, tensors, plan, sides, num_padded)
    for name, shift in shifts.items():
        state[name] = _shift_rows(state[name], shift)
    _untie(new, state)
    new.load_state_dict(state, strict=False)
    new.to(next(model.parameters()).dtype)
    _check_loaded(new, state)
    if getattr(model, "generation_config", None) is not None:
        new.generation_config = copy.deepcopy(model.generation_config)
        if sides != "encoder":
            update_token_ids(new.generation_config, plan, "both")
            _forbid_empty_rows(new.generation_config, plan, num_padded)
    return new.eval()


def _check_padding(config: Any, model: Any) -> None:
    """Check that the padding id, which Marian and mBART share between both sides, has a row on each."""
    pad = getattr(config, "pad_token_id", None)
    smallest = min((part.vocab_size for part in _parts(config)), default=0)
    smallest = min(smallest, getattr(config, "decoder_vocab_size", None) or smallest)
    if pad is not None and pad >= smallest and not hasattr(config, "encoder"):
        raise DataError(
            f"{type(model).__name__} has one padding id for both sides: {pad}, beyond the {smallest} rows of "
            "one side; exchange both sides, or give a vocabulary whose padding is within both"
        )


def _build(model: Any, config: Any) -> Any:
    """Build a model of the same kind without advancing the caller's random state."""
    with torch.random.fork_rng(devices=[]):
        new = type(model)(config)
    kept = {name for name, _ in model.named_modules(remove_duplicate=False)}
    for name, _ in [*new.named_modules(remove_duplicate=False)]:
        # remove parts that the old model was built without (add_pooling_layer=False)
        parent, _, child = name.rpartition(".")
        if name and name not in kept and parent in kept:
            setattr(new.get_submodule(parent), child, None)
    return new


def _set_vocab_size(config: Any, model: Any, size: int, sides: Sides) -> int:
    """Write the new size into the configuration.

    Returns the number of rows of all tables if the architecture has one size for two vocabularies; else 0.
    """
    if sides == "both":
        for part in _parts(config):
            part.vocab_size = size
            if hasattr(part, "decoder_vocab_size"):
                part.decoder_vocab_size = size
        return 0
    if hasattr(config, "decoder_vocab_size"):
        # Marian has a size for each side once the tables are no longer shared
        config.share_encoder_decoder_embeddings = False
        setattr(config, "decoder_vocab_size" if sides == "decoder" else "vocab_size", size)
        return 0
    if hasattr(config, "encoder") and hasattr(config, "decoder"):
        getattr(config, sides).vocab_size = size
        config.tie_encoder_decoder = False
        return 0
    rows = max(size, config.vocab_size)
    config.vocab_size = rows
    config.tie_word_embeddings = False
    warnings.warn(
        f"{type(model).__name__} has one vocabulary size for both sides: both get {rows} rows and no table "
        "is tied any more; Marian and EncoderDecoderModel have a size for each side",
        stacklevel=3,
    )
    return rows


def _parts(config: Any) -> Iterator[Any]:
    """Yield the configuration and those of its parts that have a vocabulary size."""
    if hasattr(config, "vocab_size"):
        yield config
    for name in ("encoder", "decoder", "text_config"):
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "vocab_size"):
            yield part


def _new_state(
    model: Any, tensors: VocabularyTensors, plan: TransferPlan, sides: Sides, num_padded: int
) -> dict[str, Tensor]:
    changed: set[str] = set()
    if sides in ("encoder", "both"):
        changed |= tensors.encoder
    if sides in ("decoder", "both"):
        changed |= tensors.decoder | tensors.output | tensors.bias
    if sides != "both":
        # a shared table has a name on each side, and each name is changed or kept by its side
        changed -= _names_of_other_side(tensors, sides)
    made: dict[tuple[int, bool], Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in named_tensors(model):
        if name not in tensors.all:
            state[name] = tensor.detach()
            continue
        is_changed = name in changed
        key = (tensor.data_ptr(), is_changed)
        if key not in made:
            # an untied output table draws other noise than the input table
            stream = int(name in tensors.output and name not in tensors.decoder)
            value = (
                _exchange_tensor(plan, tensor, stream, name in tensors.bias)
                if is_changed
                else tensor.detach()
            )
            made[key] = _pad_rows(value, num_padded, name in tensors.bias)
        state[name] = made[key]
    return state


def _names_of_other_side(tensors: VocabularyTensors, sides: Sides) -> set[str]:
    """Return the names that belong to the unchanged side, by the part of the model that holds them."""
    other = "encoder" if sides == "decoder" else "decoder"
    own = {name for name in tensors.all if f"{other}." in name or name.startswith(f"{other}.")}
    if sides == "encoder":
        own |= set(tensors.output | tensors.bias) - {name for name in tensors.encoder if "encoder." in name}
    return own


def _exchange_tensor(plan: TransferPlan, tensor: Tensor, stream: int, is_bias: bool) -> Tensor:
    old = tensor.detach().float().cpu().numpy()
    if not is_bias:
        return torch.from_numpy(plan.apply(old, stream=stream)).to(tensor.dtype)
    flat = old.reshape(-1)
    return torch.from_numpy(plan.apply_bias(flat)).reshape(*tensor.shape[:-1], len(plan)).to(tensor.dtype)


def _pad_rows(tensor: Tensor, num_rows: int, is_bias: bool) -> Tensor:
    if not num_rows:
        return tensor
    if is_bias:
        missing = num_rows - tensor.shape[-1]
        return torch.cat([tensor, tensor.new_full((*tensor.shape[:-1], missing), GAP_BIAS)], -1)
    missing = num_rows - tensor.shape[0]
    return torch.cat([tensor, tensor.new_zeros(missing, tensor.shape[1])])


def _shift_positions(config: Any, model: Any, tensors: VocabularyTensors) -> dict[str, int]:
    """Find position tables that count from the padding id (RoBERTa), and make room for the new one.

    Returns the number of rows by which each table moves.
    """
    old_pad, new_pad = model.config.pad_token_id, config.pad_token_id
    shifts: dict[str, int] = {}
    if old_pad is None or new_pad is None or old_pad == new_pad:
        return shifts
    for name, module in model.named_modules():
        if getattr(module, "padding_idx", None) != old_pad or f"{name}.weight" in tensors.all:
            continue
        is_table = isinstance(module, torch.nn.Embedding)
        if is_table and module.num_embeddings == model.config.max_position_embeddings:
            shifts[f"{name}.weight"] = new_pad - old_pad
        elif "Sinusoidal" in type(module).__name__:
            raise _padding_error(model, name, old_pad)
    if shifts:
        config.max_position_embeddings += new_pad - old_pad
    return shifts


def _check_shifts(new: Any, shifts: Mapping[str, int], old_pad: int | None) -> None:
    """Refuse models whose code fixes the padding id (MPNet)."""
    for name in shifts:
        module = new.get_submodule(name.removesuffix(".weight"))
        if module.padding_idx == old_pad:
            raise _padding_error(new, name, old_pad)


def _padding_error(model: Any, name: str, old_pad: int | None) -> PaddingError:
    return PaddingError(
        f"{type(model).__name__}: '{name}' computes positions from the padding id; the new tokenizer must "
        f"also have its padding at id {old_pad}"
    )


def _shift_rows(table: Tensor, shift: int) -> Tensor:
    if shift < 0:
        return table[-shift:]
    return torch.cat([table.new_zeros(shift, table.shape[1]), table])


def _untie(new: Any, state: Mapping[str, Tensor]) -> None:
    """Give own tables to names that the configuration ties but the state does not (T5's always ties)."""
    owners: dict[int, Tensor] = {}
    for name, parameter in [*new.named_parameters(remove_duplicate=False)]:
        wanted = state.get(name)
        if wanted is None or owners.setdefault(parameter.data_ptr(), wanted) is wanted:
            continue
        if not torch.equal(owners[parameter.data_ptr()], wanted):
            parent, _, child = name.rpartition(".")
            own = torch.nn.Parameter(torch.empty_like(parameter), parameter.requires_grad)
            setattr(new.get_submodule(parent), child, own)


def _check_loaded(model: Any, state: Mapping[str, Tensor]) -> None:
    """Check that every tensor of the new model is the intended one."""
    for name, tensor in named_tensors(model):
        if name not in state:
            raise DataError(f"{type(model).__name__}: no value for '{name}' of the new model")
        if tensor.shape != state[name].shape:
            raise DataError(
                f"{type(model).__name__}: '{name}' has shape {tuple(tensor.shape)} by its configuration, "
                f"but {tuple(state[name].shape)} by the plan"
            )


def _forbid_empty_rows(generation: Any, plan: TransferPlan, num_rows: int) -> None:
    """Suppress rows without a token, gaps and padding, in generation: not every model has a bias."""
    empty = [*plan.rows(Provenance.GAP).tolist(), *range(len(plan), num_rows)]
    if empty:
        kept = [i for i in getattr(generation, "suppress_tokens", None) or [] if i < len(plan)]
        generation.suppress_tokens = [*kept, *empty]
