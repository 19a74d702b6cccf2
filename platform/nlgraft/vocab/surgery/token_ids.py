"""Token ids in configurations: the settings that hold them, and their new values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_matrix

from nlgraft.vocab.tokenizers.vocabulary import SUBSTITUTE_ROLES
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan

Sides = Literal["both", "decoder", "encoder"]
ONE_ID = ("_token_id", "_token_index")
"""Endings of settings that hold the id of a role, or several (``eos_token_id: [1, 106]``)."""
LISTS = ("bad_words_ids", "force_words_ids", "suppress_tokens", "begin_suppress_tokens")
"""Settings that hold lists of ids."""


def id_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration that hold token ids, and their values; those of parts not."""
    settings = config.to_dict()
    return {
        name: value
        for name, value in settings.items()
        if value is not None and (name.endswith(ONE_ID) or name in LISTS)
    }


def flat_ids(ids: Any) -> list[int]:
    """List the ids of a setting: one, a list (several ends of a sequence), or lists of lists."""
    if isinstance(ids, list | tuple):
        return [i for each in ids for i in flat_ids(each)]
    return [ids]


def vocabulary_parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and those of its parts that may have a vocabulary of their own."""
    yield config
    for name in ("encoder", "decoder", "text_config"):
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "to_dict"):
            yield part


def complete_roles(plan: TransferPlan, config: Any) -> TransferPlan:
    """Let a new token of a role that only the configuration knows take the row that it names there.

    OPUS-MT's configuration names ``</s>`` as the beginning of a sequence, for which its tokenizer has no
    token; a new tokenizer may have one.
    """
    rows, columns, roles = [], [], dict(plan.old_roles)
    for name, value in id_settings(config).items():
        role = name.removesuffix("_token_id")
        row = plan.new_roles.get(role)
        is_known = role in plan.old_roles or not isinstance(value, int)
        if row is None or is_known or not 0 <= value < len(plan.old_surfaces):
            continue
        roles[role] = value
        if plan.provenance[row] == Provenance.NOISE:
            rows.append(row)
            columns.append(value)
    if roles == plan.old_roles:
        return plan
    provenance, reasons = plan.provenance.copy(), [*plan.reasons]
    for row, column in zip(rows, columns, strict=True):
        provenance[row] = int(Provenance.SPECIAL)
        reasons[row] = f"role of the configuration, served by '{plan.old_surfaces[column]}'"
    ones = np.ones(len(rows), np.float32)
    added = csr_matrix((ones, (rows, columns)), shape=plan.matrix.shape)
    return replace(
        plan,
        matrix=csr_matrix(plan.matrix + added),
        provenance=provenance,
        reasons=tuple(reasons),
        old_roles=roles,
    )


def update_token_ids(config: Any, plan: TransferPlan, sides: Sides) -> None:
    """Replace the token ids of a configuration and its parts, in place, by those of the new vocabulary.

    With ``sides``, only the ids of that side: those of the whole model and of its decoder belong to the
    decoder.
    """
    successor = successors(plan)
    other = {"decoder": ["encoder"], "encoder": [None, "decoder"], "both": []}[sides]
    kept = [config if name is None else getattr(config, name, None) for name in other]
    for part in vocabulary_parts(config):
        if any(part is unchanged for unchanged in kept):
            continue
        for name, value in id_settings(part).items():
            setattr(part, name, _translate(value, successor | _in_role(name, plan)))


def _in_role(field: str, plan: TransferPlan) -> dict[int, int]:
    """Map the old token in the role of a setting to the new one, which may have several roles (GPT-2)."""
    role = field.removesuffix("_token_id").removeprefix("forced_")
    substitute = SUBSTITUTE_ROLES.get(role, role)
    new = plan.new_roles.get(role, plan.new_roles.get(substitute))
    if new is None or role not in plan.old_roles:
        return {}
    return {plan.old_roles[role]: new}


def successors(plan: TransferPlan) -> dict[int, int]:
    """Map each old id to the new id that took over, for copied and special tokens.

    Where several new tokens took over one old token, the one in its own role counts, else the lowest.
    """
    new_ids = {}
    rank: dict[int, tuple[bool, int]] = {}
    for row in plan.rows(Provenance.COPY, Provenance.SPECIAL).tolist():
        old = int(plan.matrix.indices[plan.matrix.indptr[row]])
        # False sorts before True: a token in its own role wins over a substitute.
        place = ("served by" in plan.reasons[row], row)
        if old not in rank or place < rank[old]:
            rank[old], new_ids[old] = place, row
    return new_ids


def _translate(value: Any, successor: Mapping[int, int]) -> Any:
    """Translate ids; tokens without a successor leave lists and become None."""
    if isinstance(value, list | tuple):
        translated = [_translate(item, successor) for item in value]
        return [item for item in translated if item is not None and item != []]
    return successor.get(int(value))
