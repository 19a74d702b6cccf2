"""New rows of exchanged tables, which are not copies of old rows: they may be trained alone at first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from nlgraft.stages.exchange_kinds import SIDE
from nlgraft.training.step import RowsFirst
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan

TABLES = {"encoder": "source_embedding.table.weight", "decoder": "target_embedding.table.weight"}
"""Name of each side's embedding table in an encoder-decoder."""
EXCHANGED = {
    "encoder": (TABLES["encoder"],),
    "decoder": (TABLES["decoder"], "output_projection.weight", "output_projection.bias"),
}
"""Parameters of an encoder-decoder whose rows are a side's tokens."""
KEPT = (Provenance.COPY, Provenance.SPECIAL, Provenance.GAP)
"""Rows that are not new: what the old model learned, and rows without a token."""


def new_rows_first(
    num_steps: int, start: Path, model: nn.Module, names: Mapping[str, Iterable[str]] = EXCHANGED
) -> RowsFirst | None:
    """Find the rows of a model with an exchanged vocabulary that learn first.

    Args:
        num_steps: Number of steps in which they are trained alone.
        start: Directory that the exchange wrote, with its plans.
        model: The model; a table with several names counts once.
        names: Parameters that each side's plan made: ``encoder``, ``decoder``.

    Returns:
        The rows of the tables and of the output bias; None where ``num_steps`` is 0.
    """
    if not num_steps:
        return None
    # The optimiser knows a tied table by the first of its names.
    first_names = {id(parameter): name for name, parameter in model.named_parameters()}
    rows: dict[str, Tensor] = {}
    for side, tables in names.items():
        if not (start / f"plan-{side}").is_dir():
            continue
        plan = TransferPlan.load(start / f"plan-{side}")
        is_new = torch.ones(len(plan), dtype=torch.bool)
        is_new[torch.from_numpy(plan.rows(*KEPT))] = False
        everything = dict(model.named_parameters(remove_duplicate=False))
        rows |= {first_names[id(everything[name])]: is_new for name in tables if name in everything}
    return RowsFirst(num_steps, rows)


def new_rows_of_one_table(
    num_steps: int, start: Path, model: nn.Module, names: Iterable[str]
) -> RowsFirst | None:
    """Find the rows that learn first, of a model with one vocabulary whose parameters have these names."""
    return new_rows_first(num_steps, start, model, {SIDE: sorted(names)})
