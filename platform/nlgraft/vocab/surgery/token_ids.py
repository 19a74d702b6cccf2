"""Token ids in configurations: the settings that hold them, and their new values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nlgraft.vocab.plans.plan import Provenance, TransferPlan
from nlgraft.vocab.tokenizers.vocabulary import SUBSTITUTE_ROLES

Sides = Literal["both", "decoder", "encoder"]
ID_FIELDS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "unk_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
)
"""Settings of a configuration that hold token ids."""


def update_token_ids(config: Any, plan: TransferPlan, sides: Sides) -> None:
    """Replace the token ids of a configuration and its parts, in place, by those of the new vocabulary.

    With ``sides``, only the ids of that side: those of the whole model and of its decoder belong to the
    decoder.
    """
    successor = successors(plan)
    own = {"decoder": [config], "both": [config], "encoder": []}[sides]
    for name in ("encoder", "decoder"):
        if sides in (name, "both"):
            own.append(getattr(config, name, None))
    for part in own:
        for field in ID_FIELDS:
            value = None if part is None else getattr(part, field, None)
            if value is not None:
                in_role = _in_role(field, value, plan)
                setattr(part, field, _translate(value, successor) if in_role is None else in_role)


def _in_role(field: str, value: Any, plan: TransferPlan) -> int | None:
    """Return the new id of a setting that names a role, where one token has several roles (GPT-2)."""
    role = field.removesuffix("_token_id").removeprefix("forced_")
    if isinstance(value, int) and plan.old_roles.get(role) == value:
        return plan.new_roles.get(role, plan.new_roles.get(SUBSTITUTE_ROLES.get(role, role)))
    return None


def successors(plan: TransferPlan) -> dict[int, int]:
    """Map each old id to the new id that took over, for copied and special tokens.

    Where several new tokens took over one old token, the one in its own role counts, else the lowest.
    """
    found: dict[int, int] = {}
    rank: dict[int, tuple[bool, int]] = {}
    for row in plan.rows(Provenance.COPY, Provenance.SPECIAL).tolist():
        old = int(plan.matrix.indices[plan.matrix.indptr[row]])
        place = ("served by" in plan.reasons[row], row)
        if old not in rank or place < rank[old]:
            rank[old], found[old] = place, row
    return found


def _translate(value: Any, successor: Mapping[int, int]) -> Any:
    """Translate ids; tokens without a successor leave lists and become None."""
    if isinstance(value, (list, tuple)):
        translated = [_translate(item, successor) for item in value]
        return [item for item in translated if item is not None and item != []]
    return successor.get(int(value))
