"""Examine the vocabulary of any checkpoint: rows that were never trained, tokens that no text yields.

Only the embedding tables are read, not the other weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from nlgraft.vocab.methods.building import build_plan, donor_rows
from nlgraft.vocab.methods.interface import PlanMaterial
from nlgraft.vocab.plans.transfer_plan import CHUNK_ROWS, Array, Provenance, Rows, row_norms
from nlgraft.vocab.surgery.tensors import TensorRows, input_table
from nlgraft.vocab.tokenizers.directories import find_tokenizer
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.tokens import Kind
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from nlgraft.vocab_tool.checkpoints import embedding_rows, in_safetensors
from nlgraft.vocab_tool.verify import (
    Check,
    check_rows,
    check_special_ids,
    check_ties,
    check_weights,
    load_tokenizer,
    tokenizer_places,
)

SMALL_NORM = 0.3
"""Rows of text tokens whose norm is below this share of the median have hardly been trained."""
NUM_NAMED = 5
"""Tokens that a finding names."""


def examine_checkpoint(directory: str | Path) -> list[Check]:
    """Examine a checkpoint and its tokenizer, one for each side where these differ.

    Raises:
        DataError: The checkpoint cannot be loaded at all.
    """
    with in_safetensors(str(directory)) as checkpoint:
        model = checkpoint.model
        checks = [check_weights(checkpoint)]
        if not checks[0].is_good:  # the others would judge values of a new model
            return checks
        num_ids = {side: len(input_table(model, side)) for side in ("encoder", "decoder")}
        places = tokenizer_places(directory)
        for side, place, name in places:
            vocabulary = load_tokenizer(place)
            if isinstance(vocabulary, Check):
                checks.append(vocabulary)
                continue
            table = TensorRows(input_table(model, side))
            checks += examine_table(table, vocabulary, name)
            if side == "decoder":
                checks.append(check_special_ids(model, vocabulary))
            num_ids |= {each: min(len(vocabulary), len(table)) for each in (num_ids if not name else [side])}
        return [*checks, check_rows(model, num_ids), check_ties(model, len(places) == 2)]


def examine_table(table: Rows, vocabulary: Vocabulary, name: str = "") -> Iterator[Check]:
    """Compare a table [R, d] with its vocabulary; ``name`` precedes the names of the checks."""
    beyond = [surface for surface in vocabulary.surfaces[len(table) :] if surface]
    num_free = max(0, len(table) - len(vocabulary)) + len(vocabulary.gaps)
    detail = f"{len(vocabulary)} ids, {len(table)} rows, {num_free} of them without a token"
    detail += f"; without a row: {name_some(beyond)}" if beyond else ""
    yield Check(f"{name}ids have rows", not beyond, detail)
    # Tokens that no text yields cannot have been trained, so their rows are not examined below.
    unreachable = set(unreachable_tokens(vocabulary))
    named = name_some([vocabulary.surfaces[i] for i in sorted(unreachable)])
    num_reserved = sum(tok is not None and tok.kind is Kind.UNUSED for tok in vocabulary.tokens)
    detail = f"{len(unreachable)} tokens that no text yields{f': {named}' if unreachable else ''}"
    detail += f"; {num_reserved} reserved"
    yield Check(f"{name}tokens are reachable", not unreachable, detail)
    read = np.array([i for i in np.flatnonzero(vocabulary.is_normal[: len(table)]) if i not in unreachable])
    yield from _check_learning(table, vocabulary, read, name)


def unreachable_tokens(vocabulary: Vocabulary) -> list[int]:
    """List the tokens of text that their own tokenizer never yields, ascending.

    It spells their text with other tokens, or changes it first, e.g. to lower case.
    """
    unreachable = []
    for identity in np.flatnonzero(vocabulary.is_normal).tolist():
        tok = vocabulary.token(identity)
        if not tok.core:
            continue
        pieces = [piece.id for piece in vocabulary.segment(tok)]
        if pieces != [identity] or vocabulary.normalised(tok) != tok:
            unreachable.append(identity)
    return unreachable


def _check_learning(
    table: Rows, vocabulary: Vocabulary, read: NDArray[np.int64], name: str
) -> Iterator[Check]:
    """Look for rows of reachable tokens that are equal or small, which rows that were trained are not."""
    digests = _row_digests(table)
    first: dict[bytes, int] = {}
    alike = [i for i in read.tolist() if first.setdefault(digests[i], i) != i]
    named = name_some([f"{vocabulary.surfaces[i]} = {vocabulary.surfaces[first[digests[i]]]}" for i in alike])
    yield Check(f"{name}rows differ", not alike, named or "no two readable tokens have the same row")
    norms = row_norms(table)[read]
    median = float(np.median(norms)) if len(norms) else 0.0
    small = read[norms < SMALL_NORM * median]
    named = name_some([vocabulary.surfaces[i] for i in small.tolist()])
    detail = f"{len(small)} rows below {SMALL_NORM} times the median norm {median:.3g}"
    yield Check(f"{name}rows have learned", not len(small), f"{detail}: {named}" if len(small) else detail)


def _row_digests(table: Rows) -> list[bytes]:
    """Make a digest of each row; equal ones belong to equal rows."""
    parts = (table[start : start + CHUNK_ROWS] for start in range(0, len(table), CHUNK_ROWS))
    # Digests instead of the rows themselves, which a large table would hold twice.
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for part in parts for row in part]


def name_some(surfaces: list[str]) -> str:
    """Join the first tokens of a finding, with the number of the others."""
    more = f" and {len(surfaces) - NUM_NAMED} more" if len(surfaces) > NUM_NAMED else ""
    return ", ".join(surfaces[:NUM_NAMED]) + more


# Audit of a donor: rows crafted so that a transplant of its tokenizer breaks the model that receives it.
#
# A donor's row is rebuilt in another model by the weights with which shared tokens give it in the donor. A
# row can be chosen that is ordinary in the donor while the same weights add up to an extreme row elsewhere.
# Source: Liu et al. (2026), When the same coefficients reach different places (arXiv 2601.00065), of which
# only the abstract was at hand: what is looked for is what it says, an ordinary row there and a salient sum
# here.


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
