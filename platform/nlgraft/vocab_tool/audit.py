"""Audit of a donor: rows crafted so that a transplant of its tokenizer breaks the model that receives it.

A donor's row is rebuilt in another model by the weights with which shared tokens give it in the donor. A row
can be chosen that is ordinary in the donor while the same weights add up to an extreme row elsewhere.
Source: Liu et al. (2026), When the same coefficients reach different places (arXiv 2601.00065), of which only
the abstract was at hand: what is looked for is what it says, an ordinary row there and a salient sum here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from nlgraft.vocab.methods.building import build_plan, donor_rows
from nlgraft.vocab.methods.interface import PlanMaterial
from nlgraft.vocab.plans.moments import Array
from nlgraft.vocab.plans.transfer_plan import Provenance
from nlgraft.vocab.tokenizers.directories import find_tokenizer
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab_tool.doctor import name_some
from nlgraft.vocab_tool.stored_checkpoints import embedding_rows
from nlgraft.vocab_tool.verify import Check

MAX_DEVIATION = 3.5
"""Deviations from the median that a token may have, on a log scale, in robust standard deviations."""
LARGE = 0.9
"""Quantile of the norms of a model's own rows; smaller rebuilt rows do no harm."""


def audit_donor(donor: str, base: str) -> Check:
    """Rebuild a donor's tokens in another model as method ``omp`` does, and look for crafted ones.

    Args:
        donor: Checkpoint whose tokenizer may be transplanted.
        base: Checkpoint that would receive it.

    Raises:
        DataError: A checkpoint or a tokenizer cannot be read.
    """
    new, old = (load_vocabulary(find_tokenizer(name)) for name in (donor, base))
    donor_table, table = embedding_rows(donor), embedding_rows(base)[: len(old)]
    donor_tokens = donor_rows(new, new, donor_table)
    plan = build_plan(old, new, "omp", material=PlanMaterial(donor=donor_tokens))
    made = plan.rows(Provenance.COMPOSED)
    weights = csr_matrix(plan.matrix[made])
    atoms = donor_rows(old, new, donor_table).vectors
    is_crafted = crafted_tokens(weights, atoms, donor_tokens.vectors[made], table, table[old.is_normal])
    crafted = [new.surfaces[i] for i in made[is_crafted]]
    detail = f"{len(made)} tokens of the donor rebuilt in {base}, {len(crafted)} as if crafted to break it"
    return Check(
        "rows survive a transplant", not crafted, detail + (f": {name_some(crafted)}" if crafted else "")
    )


def crafted_tokens(
    weights_NS: csr_matrix, atoms_SK: Array, targets_NK: Array, rows_SD: Array, own_RD: Array
) -> NDArray[np.bool_]:
    """Find tokens whose weights cancel out in the donor and add up in the other model.

    Either sign must stand out from the other rebuilt tokens, most of which are assumed to be honest.

    Args:
        weights_NS: Weights of shared tokens in each rebuilt one.
        atoms_SK: Rows of shared tokens in the donor.
        targets_NK: Rows of the rebuilt tokens in the donor.
        rows_SD: Rows of shared tokens in the other model.
        own_RD: All rows of text in the other model.

    Returns:
        A mask [N].
    """
    if not len(targets_NK):
        return np.zeros(0, dtype=np.bool_)
    rebuilt_N, ordinary_N = np.linalg.norm(weights_NS @ rows_SD, axis=1), np.linalg.norm(targets_NK, axis=1)
    # the norm of the donor's sum if the directions of its terms had nothing to do with each other
    apart_N = np.sqrt(weights_NS.multiply(weights_NS) @ np.linalg.norm(atoms_SK, axis=1) ** 2)
    leverage_N = apart_N * rebuilt_N / np.maximum(ordinary_N, np.finfo(np.float32).tiny) ** 2
    is_large = rebuilt_N > np.quantile(np.linalg.norm(own_RD, axis=1), LARGE)
    is_crafted_N: NDArray[np.bool_] = (_stand_out(leverage_N) | _stand_out(rebuilt_N)) & is_large
    return is_crafted_N


def _stand_out(values: Array) -> NDArray[np.bool_]:
    logs = np.log(np.maximum(values, np.finfo(np.float32).tiny))
    deviations = logs - np.median(logs)
    is_outlier: NDArray[np.bool_] = deviations > MAX_DEVIATION * 1.4826 * np.median(np.abs(deviations))
    return is_outlier
