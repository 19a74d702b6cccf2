"""Exchange the vocabulary of a Hugging Face model in memory, of encoder, decoder or both.

A new model is built from the new configuration and filled: vocabulary tensors by a ``TransferPlan``, all
others with those of the old model. So the result always loads from its own configuration.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils import swap_tensors

from nlgraft.basics.errors import DataError, PaddingError
from nlgraft.vocab.surgery.token_ids import Sides, update_token_ids, vocabulary_parts
from nlgraft.vocab.transfer_plan import GAP_BIAS, Provenance, TransferPlan


@dataclass(frozen=True)
class VocabularyTensors:
    """The tensors of a model that have a row or an entry for each token.

    Attributes:
        encoder: Names of tables that encoder ids index; empty without an encoder.
        decoder: Names of tables that decoder ids index; of the single table of a one-sided model.
        output: Names of output tables.
        bias: Names of output biases, entries in the last dimension.
    """

    encoder: frozenset[str]
    decoder: frozenset[str]
    output: frozenset[str]
    bias: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """All names."""
        return self.encoder | self.decoder | self.output | self.bias


class TensorRows:
    """Rows [R, d] of a tensor of any precision, read in single precision part by part."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self.shape = tuple(tensor.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NDArray[np.floating]:
        return self._tensor[key].float().cpu().numpy()


def find_vocabulary_tensors(model: Any) -> VocabularyTensors:
    """Find the tensors that depend on the vocabulary, from the model's own accessors and not by shape.

    A tensor with several names is listed under each.

    Raises:
        DataError: The model has no input embeddings.
    """
    head = model.get_output_embeddings()
    output = [] if head is None else [head.weight]
    bias = [] if head is None or getattr(head, "bias", None) is None else [head.bias]
    names = dict(named_tensors(model))
    # Marian and BART add this buffer to the logits.
    bias += [tensor for name, tensor in names.items() if name.split(".")[-1] == "final_logits_bias"]
    has_two_sides = is_encoder_decoder(model)
    encoder = [input_table(model, "encoder")] if has_two_sides else []
    decoder = [input_table(model, "decoder")]
    if has_two_sides:
        # BART and T5 keep the shared table even when neither side reads it any more
        shared = model.get_input_embeddings().weight
        decoder += [shared] if shared is not encoder[0] and shared is not decoder[0] else []
    sides = _names_of(names, encoder), _names_of(names, decoder), _names_of(names, output)
    return VocabularyTensors(*sides, bias=_with_ties(model, _names_of(names, bias)))


def input_table(model: Any, side: str) -> Tensor:
    """Return the input embeddings [V, d] of one side, ``encoder`` or ``decoder``.

    Both are the one table of a one-sided model.

    Raises:
        DataError: The model does not provide them.
    """
    try:
        module = getattr(model, f"get_{side}")() if is_encoder_decoder(model) else model
        return module.get_input_embeddings().weight
    except (AttributeError, NotImplementedError) as error:
        raise DataError(
            f"{type(model).__name__} provides no get_input_embeddings, so its table is unknown"
        ) from error


def is_encoder_decoder(model: Any) -> bool:
    """Return True for models with two sides."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def named_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a checkpoint, without buffers that the model computes itself."""
    yield from model.state_dict(keep_vars=True).items()


def _names_of(names: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> frozenset[str]:
    # Compared by identity: equal shapes or values do not make a tie.
    tensor_ids = {id(tensor) for tensor in tensors}
    return frozenset(name for name, tensor in names.items() if id(tensor) in tensor_ids)


def _with_ties(model: Any, names: frozenset[str]) -> frozenset[str]:
    """Add names that the architecture can tie to these, tied now or not (BERT's head bias has two)."""
    tied_names = set(names)
    for prefix, module in model.named_modules():
        pairs = getattr(module, "_tied_weights_keys", None)
        for pair in pairs.items() if isinstance(pairs, dict) else ():
            both = {f"{prefix}.{name}" if prefix else name for name in pair}
            if both & tied_names:
                tied_names |= both
    return frozenset(tied_names)


def count_embedding_parameters(model: Any) -> int:
    """Count the parameters of all vocabulary tables, tied ones once."""
    names = find_vocabulary_tensors(model)
    tables = names.encoder | names.decoder | names.output
    sizes = {id(tensor): tensor.numel() for name, tensor in named_tensors(model) if name in tables}
    return sum(sizes.values())


def exchange_vocabulary(
    model: Any,
    plan: TransferPlan,
    *,
    sides: Sides = "both",
    multiple: int = 1,
) -> Any:
    """Build the same model with another vocabulary.

    Args:
        model: A ``transformers`` model; not changed.
        plan: Origin of each new row.
        sides: Side whose vocabulary is exchanged, for encoder-decoders.
        multiple: Exchanged tables get rows without a token, up to a multiple of this number.

    Returns:
        The new model, in evaluation mode, each tensor in its old precision, with updated token ids in its
        configuration and generation configuration. It shares the memory of all tensors that stay. Shared
        input and output tables stay shared, unless the architecture has one vocabulary size for both sides
        and only one is exchanged: then all tables get as many rows as the larger vocabulary, none is tied any
        more, and a warning says so.

    Raises:
        DataError: A side was requested of a one-sided model, or the plan belongs to another tokenizer.
        PaddingError: The model computes positions from its padding id, which the plan moves.
    """
    changes = _find_changes(model, plan, sides, multiple)
    with without_values():
        new = _build_model(model, changes.config)
    _check_positions(new, changes, getattr(model.config, "pad_token_id", None))
    state = _new_state(model, changes, plan)
    untie(new, state)
    missing = fill(new, state, type(model).__name__)
    if missing:
        raise DataError(f"{type(model).__name__}: no value for '{missing[0]}' of the new model")
    if changes.generation_config is not None:
        new.generation_config = changes.generation_config
    return new.eval()


@contextmanager
def without_values() -> Iterator[None]:
    """Build models whose parameters have no values; buffers, which they compute themselves, have theirs."""

    def emptied(
        _module: Any,
        _name: str,
        parameter: torch.nn.Parameter,
    ) -> torch.nn.Parameter | None:
        if parameter.is_meta:
            return None  # tied to another
        return torch.nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    hook = register_module_parameter_registration_hook(emptied)  # pyright: ignore[reportArgumentType]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        hook.remove()


def _build_model(model: Any, config: Any) -> Any:
    new = type(model)(config)
    kept = {name for name, _ in model.named_modules(remove_duplicate=False)}
    for name, _ in [*new.named_modules(remove_duplicate=False)]:
        # remove parts that the old model was built without (add_pooling_layer=False)
        parent, _, child = name.rpartition(".")
        if name and name not in kept and parent in kept:
            setattr(new.get_submodule(parent), child, None)
    return new


def _new_state(
    model: Any,
    changes: Changes,
    plan: TransferPlan,
) -> dict[str, Tensor]:
    """Make all tensors of the new model; names with the same change share one."""
    made: dict[Change, Tensor] = {}
    state = {}
    for name, tensor in named_tensors(model):
        change = changes.tensors.get(name)
        if change is not None and change not in made:  # one for all names of a tied table, which stays tied
            made[change] = change.apply(plan, tensor, name)
        state[name] = tensor if change is None else made[change]
    return state


def untie(new: Any, state: Mapping[str, Tensor]) -> None:
    """Untie names that the configuration ties but the state does not (T5's configuration always ties)."""
    owners: dict[int, Tensor] = {}
    for name, parameter in [*new.named_parameters(remove_duplicate=False)]:
        table = state.get(name)
        if table is None or owners.setdefault(id(parameter), table) is table:
            continue
        # Equal tables stay tied: the checkpoint would otherwise be saved with both.
        if not torch.equal(owners[id(parameter)], table):
            parent, _, child = name.rpartition(".")
            untied = torch.nn.Parameter(torch.empty_like(parameter), parameter.requires_grad)
            setattr(new.get_submodule(parent), child, untied)


def fill(
    model: Any,
    state: Mapping[str, Tensor],
    source: str,
) -> list[str]:
    """Give the tensors of a model their values, whose memory they share; tied names stay tied.

    Args:
        model: The model, with or without values.
        state: Value of each tensor, by its names.
        source: Where they are from, for messages.

    Returns:
        The names of parameters that have no value.

    Raises:
        DataError: A value has another shape than the model's tensor.
    """
    tensors = dict(named_tensors(model))
    filled: set[int] = set()
    addresses: set[int] = set()
    for name, value in state.items():
        tensor = tensors.get(name)
        if tensor is None or id(tensor) in filled:
            continue
        if tensor.shape != value.shape:
            raise DataError(
                f"{source}: '{name}' has shape {tuple(value.shape)}, but the model needs "
                f"{tuple(tensor.shape)}; config.json does not belong to these weights"
            )
        # An untied table that begins as a copy of another has its own memory.
        value = value.detach().clone() if value.data_ptr() in addresses else value.detach()
        addresses.add(value.data_ptr())
        if isinstance(tensor, torch.nn.Parameter):
            value = torch.nn.Parameter(value, tensor.requires_grad and value.is_floating_point())
        swap_tensors(tensor, value)
        filled.add(id(tensor))
    return [name for name, tensor in tensors.items() if tensor.is_meta]


# Changes that another vocabulary brings to a model: its tensors, its configuration, its token ids.


@dataclass(frozen=True)
class Change:
    """The way from a tensor of the old model to one of the new model.

    Attributes:
        source: Identity of the old tensor, which may have several names.
        is_exchanged: True if the rows follow the plan; else they stay.
        is_bias: True for a bias, with entries in the last dimension.
        stream: Stream of random rows.
        num_rows: Number of rows afterwards; 0: unchanged.
        shift: Rows to insert at the start (positive) or to drop there (negative).
    """

    source: int
    is_exchanged: bool = False
    is_bias: bool = False
    stream: int = 0
    num_rows: int = 0
    shift: int = 0

    def apply(
        self,
        plan: TransferPlan,
        old: Tensor,
        name: str,
    ) -> Tensor:
        """Make the new tensor; one that does not change is the old one.

        Raises:
            DataError: The plan belongs to another vocabulary, or the tensor is quantised.
        """
        old = old.detach()
        if not old.is_floating_point():
            raise DataError(
                f"'{name}' holds {old.dtype}, a quantised table, of which no rows can be made; exchange the "
                "vocabulary before the model is quantised"
            )
        if self.is_bias:
            return self._new_bias(plan, old)
        if self.is_exchanged:
            # Rows beyond the plan, up to the multiple, stay zero.
            new = old.new_zeros(self.num_rows, old.shape[1])
            for start, rows in plan.parts(TensorRows(old), stream=self.stream):
                new[start : start + len(rows)] = torch.from_numpy(rows)
            return new
        missing = max(self.shift, 0), max(self.num_rows - len(old), 0)
        if not any(missing) and self.shift == 0:
            return old
        before, after = (old.new_zeros(count, old.shape[1]) for count in missing)
        return torch.cat([before, old[max(-self.shift, 0) :], after])

    def _new_bias(self, plan: TransferPlan, old: Tensor) -> Tensor:
        entries = old
        if self.is_exchanged:
            flat = plan.apply_bias(old.float().cpu().numpy().reshape(-1))
            shape = (*old.shape[:-1], len(plan))
            entries = torch.from_numpy(flat).reshape(shape).to(old)
        missing = max(self.num_rows - entries.shape[-1], 0)
        gap = entries.new_full((*old.shape[:-1], missing), GAP_BIAS)
        return torch.cat([entries, gap], -1)


@dataclass(frozen=True)
class Changes:
    """All changes to a model.

    Attributes:
        config: The new configuration.
        generation_config: The new generation configuration; None if the model has none.
        tensors: Change of each tensor that depends on the vocabulary, under each of its names.
    """

    config: Any
    generation_config: Any
    tensors: Mapping[str, Change]


def _find_changes(
    model: Any,
    plan: TransferPlan,
    sides: Sides,
    multiple: int,
) -> Changes:
    """Find what another vocabulary changes in a model, which stays as it is; see ``exchange_vocabulary``."""
    if not is_encoder_decoder(model) and sides != "both":
        raise DataError(
            f"{type(model).__name__} has one vocabulary; sides {sides!r} applies to encoder-decoders only, "
            "use 'both'"
        )
    tensors = find_vocabulary_tensors(model)
    config = copy.deepcopy(model.config)
    num_rows = -(-len(plan) // multiple) * multiple
    num_shared = _set_vocab_size(config, model, num_rows, sides)
    update_token_ids(config, plan, sides)
    _check_padding(config, model)
    changes = _table_changes(model, tensors, sides, num_shared or num_rows, num_shared)
    # After the token ids, since the new padding id decides the shift.
    changes |= _position_changes(config, model, tensors)
    generation = copy.deepcopy(getattr(model, "generation_config", None))
    if generation is not None and sides != "encoder":
        update_token_ids(generation, plan, "both")
        _forbid_empty_rows(generation, plan, num_shared or num_rows)
    return Changes(config, generation, changes)


def _check_padding(config: Any, model: Any) -> None:
    """Check that the padding id, which Marian and mBART share between both sides, has a row on each."""
    pad = getattr(config, "pad_token_id", None)
    smallest = min((part.vocab_size for part in _sized_parts(config)), default=0)
    smallest = min(smallest, getattr(config, "decoder_vocab_size", None) or smallest)
    if pad is not None and pad >= smallest and not hasattr(config, "encoder"):
        raise DataError(
            f"{type(model).__name__} has one padding id for both sides: {pad}, beyond the {smallest} rows of "
            "one side; exchange both sides, or give a vocabulary whose padding is within both"
        )


def _set_vocab_size(
    config: Any,
    model: Any,
    size: int,
    sides: Sides,
) -> int:
    """Write the new size into the configuration.

    Returns the number of rows of all tables if the architecture has one size for two vocabularies; else 0.
    """
    if sides == "both":
        for part in _sized_parts(config):
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
        stacklevel=4,
    )
    return rows


def _sized_parts(config: Any) -> list[Any]:
    return [part for part in vocabulary_parts(config) if hasattr(part, "vocab_size")]


def _table_changes(
    model: Any, tensors: VocabularyTensors, sides: Sides, num_rows: int, num_kept_rows: int
) -> dict[str, Change]:
    changed: set[str] = set()
    if sides in ("encoder", "both"):
        changed |= tensors.encoder
    if sides in ("decoder", "both"):
        changed |= tensors.decoder | tensors.output | tensors.bias
    if sides != "both":
        # a shared table has a name on each side, and each name is changed or kept by its side
        changed -= _names_of_other_side(tensors, sides)
    return {
        name: Change(
            source=id(tensor),
            is_exchanged=name in changed,
            is_bias=name in tensors.bias,
            # an untied output table draws other noise than the input table
            stream=int(name in tensors.output and name not in tensors.decoder and name in changed),
            num_rows=num_rows if name in changed else num_kept_rows,
        )
        for name, tensor in named_tensors(model)
        if name in tensors.all
    }


def _names_of_other_side(tensors: VocabularyTensors, sides: Sides) -> set[str]:
    """Return the names that belong to the unchanged side, by the part of the model that holds them."""
    other = "encoder" if sides == "decoder" else "decoder"
    names = {name for name in tensors.all if f"{other}." in name or name.startswith(f"{other}.")}
    if sides == "encoder":
        own_names = {name for name in tensors.encoder if "encoder." in name}
        names |= set(tensors.output | tensors.bias) - own_names
    return names


def _position_changes(
    config: Any,
    model: Any,
    tensors: VocabularyTensors,
) -> dict[str, Change]:
    """Find position tables that count from the padding id (RoBERTa), and make room for the new one."""
    old_pad, new_pad = (getattr(each, "pad_token_id", None) for each in (model.config, config))
    changes = {}
    if old_pad is None or new_pad is None or old_pad == new_pad:
        return changes
    for name, module in model.named_modules():
        if getattr(module, "padding_idx", None) != old_pad or f"{name}.weight" in tensors.all:
            continue
        is_table = isinstance(module, torch.nn.Embedding)
        if is_table and module.num_embeddings == model.config.max_position_embeddings:
            changes[f"{name}.weight"] = Change(source=id(module.weight), shift=new_pad - old_pad)
        elif "Sinusoidal" in type(module).__name__:
            raise _padding_error(model, name, old_pad)
    if changes:
        config.max_position_embeddings += new_pad - old_pad
    return changes


def _check_positions(
    new: Any,
    changes: Changes,
    old_pad: int | None,
) -> None:
    """Refuse models whose code fixes the padding id (MPNet).

    Raises:
        PaddingError: The new model still counts positions from the old padding id.
    """
    for name, change in changes.tensors.items():
        if change.shift and new.get_submodule(name.removesuffix(".weight")).padding_idx == old_pad:
            raise _padding_error(new, name.removesuffix(".weight"), old_pad)


def _padding_error(
    model: Any,
    name: str,
    old_pad: int | None,
) -> PaddingError:
    return PaddingError(
        f"{type(model).__name__}: '{name}' computes positions from the padding id; the new tokenizer must "
        f"also have its padding at id {old_pad}"
    )


def _forbid_empty_rows(generation: Any, plan: TransferPlan, num_rows: int) -> None:
    """Suppress rows without a token, gaps and padding, in generation: not every model has a bias."""
    empty = [*plan.rows(Provenance.GAP).tolist(), *range(len(plan), num_rows)]
    if empty:
        # The ids have been translated already; those beyond the plan are listed anew.
        kept = [i for i in getattr(generation, "suppress_tokens", None) or [] if i < len(plan)]
        generation.suppress_tokens = [*kept, *empty]
