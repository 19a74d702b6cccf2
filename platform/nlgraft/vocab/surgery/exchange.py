"""Exchange the vocabulary of a Hugging Face model in memory, of encoder, decoder or both.

A new model is built from the new configuration and filled: vocabulary tensors by a ``TransferPlan``, all
others bit for bit from the old model. So the result always loads from its own configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nlgraft.basics.errors import DataError
from nlgraft.vocab.plans.transfer_plan import TransferPlan
from nlgraft.vocab.surgery.changes import Change, Changes, check_positions, find_changes
from nlgraft.vocab.surgery.tensors import named_tensors
from nlgraft.vocab.surgery.token_ids import Sides


def exchange_vocabulary(model: Any, plan: TransferPlan, *, sides: Sides = "both") -> Any:
    """Build the same model with another vocabulary.

    Args:
        model: A ``transformers`` model; not changed.
        plan: Origin of each new row.
        sides: Side whose vocabulary is exchanged, for encoder-decoders.

    Returns:
        The new model, in evaluation mode and the old one's dtype, with updated token ids in its configuration
        and generation configuration. Shared input and output tables stay shared, unless the architecture has
        one vocabulary size for both sides and only one is exchanged: then all tables get as many rows as the
        larger vocabulary, none is tied any more, and a warning says so.

    Raises:
        DataError: A side was requested of a one-sided model, or the plan belongs to another tokenizer.
        PaddingError: The model computes positions from its padding id, which the plan moves.
    """
    changes = find_changes(model, getattr(model, "generation_config", None), plan, sides)
    new = build_model(model, changes.config)
    check_positions(new, changes, getattr(model.config, "pad_token_id", None))
    state = _new_state(model, changes, plan)
    untie(new, state)
    # Not strict: the check that follows names what is missing or has another shape.
    new.load_state_dict(state, strict=False)
    new.to(next(model.parameters()).dtype)  # transformers builds in the default type, whatever the old one's
    _check_loaded(new, state)
    if changes.generation_config is not None:
        new.generation_config = changes.generation_config
    return new.eval()


def build_model(model: Any, config: Any) -> Any:
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


def _new_state(model: Any, changes: Changes, plan: TransferPlan) -> dict[str, Tensor]:
    """Make all tensors of the new model; names with the same change share one."""
    made: dict[Change, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in named_tensors(model):
        change = changes.tensors.get(name)
        if change is None:
            state[name] = tensor.detach()
            continue
        if change not in made:  # one tensor for all names of a tied table, so that it stays tied
            made[change] = change.apply(plan, tensor)
        state[name] = made[change]
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
