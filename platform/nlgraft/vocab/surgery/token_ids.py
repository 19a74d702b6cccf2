"""Token ids in configurations: which settings hold them, and what they become under another vocabulary."""

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
    """Replace the token ids of a configuration by those of the new vocabulary.

    Args:
        config: A configuration or generation configuration, with the parts it may have; changed in place.
        plan: Says which new token took over which old one.
        sides: Whose ids they are: those of the whole and of its decoder belong to the decoder's vocabulary.
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
    """New id for a setting that names a role, where one token had several roles (GPT-2) or will have."""
    role = field.removesuffix("_token_id").removeprefix("forced_")
    if isinstance(value, int) and plan.old_roles.get(role) == value:
        return plan.new_roles.get(role, plan.new_roles.get(SUBSTITUTE_ROLES.get(role, role)))
    return None


def successors(plan: TransferPlan) -> dict[int, int]:
    """Say which new id took over each old id.

    Args:
        plan: A plan.

    Returns:
        Old id -> new id for copied and special tokens. Where several new tokens took over one old token, the
        one that served its own role, else the lowest.
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
    """New ids for a setting; tokens that nothing took over leave lists and become None."""
    if isinstance(value, (list, tuple)):
        translated = [_translate(item, successor) for item in value]
        return [item for item in translated if item is not None and item != []]
    return successor.get(int(value))
