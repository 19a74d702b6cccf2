"""Build the plan of a new vocabulary: copy the tokens that both share, ask a method for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from nlgraft.basics.errors import DataError
from nlgraft.vocab.methods.interface import (
    DEFAULT_CHOICES,
    NO_MATERIAL,
    Method,
    PlanChoices,
    PlanMaterial,
    Request,
    Rows,
    TokenVectors,
    shares,
)
from nlgraft.vocab.methods.registry import find_method
from nlgraft.vocab.tokenizers.vocabulary import SUBSTITUTE_ROLES, Kind, Tok, Vocabulary, role_of
from nlgraft.vocab.transfer_plan import Array, Noise, Provenance, TransferPlan


def build_plan(
    old: Vocabulary,
    new: Vocabulary,
    method: Method | str = "avg",
    choices: PlanChoices = DEFAULT_CHOICES,
    material: PlanMaterial = NO_MATERIAL,
) -> TransferPlan:
    """Plan the rows of a new vocabulary; every row is filled and has a reason.

    Args:
        old: The vocabulary with embeddings.
        new: The vocabulary that gets them.
        method: A method or the name of one.
        choices: Settings.
        material: Inputs of the method besides the vocabularies.

    Raises:
        DataError: Unknown method, or one that needs rows or vectors that are missing.
    """
    method = find_method(method) if isinstance(method, str) else method
    _check_needs(method, material)
    draft = _Draft(old, new)
    draft.match(method.has_copies)
    if material.old_rows is not None:
        # Matrices may be padded beyond the vocabulary; no method should learn from such rows.
        material = replace(material, old_rows=material.old_rows[: len(old)])
    request = Request(old, new, draft.missing, draft.shared, choices, material)
    draft.fill(method.produce(request), request, method)
    noise = replace(method.noise, seed=choices.seed)
    if choices.noise_std is not None and noise.spread == "fixed":
        noise = replace(noise, scale=choices.noise_std)
    return draft.plan(noise, method.name)


def _check_needs(method: Method, material: PlanMaterial) -> None:
    needs = {
        "old_rows (the old embedding matrix)": method.needs_old_rows and material.old_rows is None,
        f"new_vectors ({method.vectors} vectors of the new tokens)": method.vectors
        and material.new_vectors is None,
        "old_vectors (vectors of the old tokens)": method.needs_old_vectors and material.old_vectors is None,
        "donor (rows of the new tokens in another model)": method.needs_donor and material.donor is None,
    }
    missing = [name for name, is_missing in needs.items() if is_missing]
    if missing:
        raise DataError(
            f"method '{method.name}' needs {' and '.join(missing)}; "
            "nlgraft.vocab.methods.token_vectors.learn_vectors makes vectors"
        )


def donor_rows(new: Vocabulary, donor: Vocabulary, table: Array) -> TokenVectors:
    """Look up a donor's rows of new tokens, by the same rules as rows are copied.

    Args:
        new: The new vocabulary, often the donor's own.
        donor: The donor's vocabulary.
        table: Its embeddings [R, K].
    """
    draft = _Draft(donor, new)
    draft.match(has_copies=True)
    vectors = np.zeros((len(new), table.shape[1]), dtype=np.float32)
    counts = np.zeros(len(new), dtype=np.int64)
    for row, weights in enumerate(draft.weights):
        for identity in weights:  # one, or none
            vectors[row], counts[row] = table[identity], 1
    return TokenVectors(vectors, counts)


class _Draft:
    """A plan under construction: one entry per new id."""

    def __init__(self, old: Vocabulary, new: Vocabulary) -> None:
        self.old = old
        self.new = new
        self.weights: list[Mapping[int, float]] = [{}] * len(new)
        self.provenance = np.full(len(new), int(Provenance.NOISE), dtype=np.int8)
        self.reasons = ["drawn"] * len(new)
        self.missing: list[int] = []
        self.shared: list[tuple[int, int]] = []
        self.dense: Array | None = None

    def put(
        self,
        row: int,
        kind: Provenance,
        weights: Mapping[int, float],
        reason: str,
    ) -> None:
        self.weights[row] = weights
        self.provenance[row] = int(kind)
        self.reasons[row] = reason

    def match(self, has_copies: bool) -> None:
        """Settle gaps, special tokens and exact copies; the rest is ``missing``."""
        for row, tok in enumerate(self.new.tokens):
            if tok is None:
                self.put(row, Provenance.GAP, {}, "no token has this id")
            elif tok.kind is Kind.SPECIAL:
                self._match_special(row)
            elif tok.kind is Kind.UNUSED:
                self._match_unused(row)
            else:
                self._match_text(row, tok, has_copies)

    def _match_special(self, row: int) -> None:
        roles = [role for role, identity in self.new.roles.items() if identity == row]
        for role in roles:
            for candidate in (role, SUBSTITUTE_ROLES.get(role, role)):
                if candidate in self.old.roles:
                    reason = f"role {role}" if candidate == role else f"role {role} served by {candidate}"
                    return self.put(row, Provenance.SPECIAL, {self.old.roles[candidate]: 1.0}, reason)
        identity = self.old.ids_by_surface.get(self.new.surfaces[row])
        if identity is not None:
            return self.put(row, Provenance.SPECIAL, {identity: 1.0}, "same special token")
        role = role_of(self.new.surfaces[row])
        if role is not None and role in self.old.roles:
            # A token that had a role until the old token of that role was appended to the new vocabulary.
            reason = f"usual name of role {role}, served by '{self.old.surfaces[self.old.roles[role]]}'"
            return self.put(row, Provenance.SPECIAL, {self.old.roles[role]: 1.0}, reason)
        return self.put(row, Provenance.NOISE, {}, "special token without a counterpart")

    def _match_unused(self, row: int) -> None:
        identity = self.old.ids_by_surface.get(self.new.surfaces[row])
        if identity is None:
            return self.put(row, Provenance.NOISE, {}, "reserved, never produced")
        return self.put(row, Provenance.COPY, {identity: 1.0}, "same token, never produced")

    def _match_text(
        self,
        row: int,
        tok: Tok,
        has_copies: bool,
    ) -> None:
        normalised = self.old.normalised(tok)
        identity = self.old.ids_by_surface.get(self.new.surfaces[row])
        if identity is not None and self.old.tokens[identity] == tok:
            # The very same token comes first: its text may normalise to that of another one (NFC).
            normalised = tok
        else:
            identity = self.old.find(normalised)
        if identity is not None and tok.kind is Kind.NORMAL:
            self.shared.append((row, identity))
        if identity is None or not has_copies:
            self.missing.append(row)
            return
        reason = "same token" if normalised == tok else f"same token once normalised to '{normalised.text}'"
        self.put(row, Provenance.COPY, {identity: 1.0}, reason)

    def fill(
        self,
        rows: Rows,
        request: Request,
        method: Method,
    ) -> None:
        """Enter the method's rows, and fallbacks where it has none."""
        for index, (row, tok) in enumerate(zip(self.missing, request.tokens, strict=True)):
            # Methods mark tokens without a vector by NaN.
            if rows.dense is not None and np.isfinite(rows.dense[index]).all():
                self.put(row, Provenance.DENSE, {}, rows.reasons[index])
            elif rows.weights[index]:
                self.put(row, Provenance.COMPOSED, rows.weights[index], rows.reasons[index])
            elif method.has_fallback:
                self._fall_back(row, tok)
            else:
                self.put(row, Provenance.NOISE, {}, rows.reasons[index])
        # Tokens whose dense vector is missing have fallen back, so the others are selected.
        is_dense = self.provenance[self.missing] == Provenance.DENSE
        if rows.dense is not None and is_dense.any():
            self.dense = np.asarray(rows.dense[is_dense], dtype=np.float32)

    def _fall_back(self, row: int, tok: Tok) -> None:
        if variants := self.old.boundary_variants(tok):
            reason = "no similar token; same text, other boundary"
            return self.put(row, Provenance.BOUNDARY, shares(variants), reason)
        if characters := self.old.characters(tok):
            reason = "no similar token; its characters"
            return self.put(row, Provenance.CHARACTERS, shares(characters), reason)
        return self.put(row, Provenance.NOISE, {}, "no similar token and no known character")

    def plan(self, noise: Noise, name: str) -> TransferPlan:
        counts = [len(row) for row in self.weights]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        columns = [column for row in self.weights for column in row]
        values = [value for row in self.weights for value in row.values()]
        entries = np.array(values, np.float32), np.array(columns, np.int64), indptr
        return TransferPlan(
            matrix=csr_matrix(entries, shape=(len(self.new), len(self.old))),
            provenance=self.provenance,
            reasons=tuple(self.reasons),
            old_surfaces=self.old.surfaces,
            new_surfaces=self.new.surfaces,
            is_real=self.old.is_normal,
            noise=noise,
            dense=self.dense,
            method=name,
            old_roles=self.old.roles,
            new_roles=self.new.roles,
        )
