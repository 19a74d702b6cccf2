"""Embedding generators with parameters, ATT-EG and PATT-EG; AVG-EG is method ``avg`` of the platform.

Shape letters: N tokens to generate, W width of the table of similar tokens, V old vocabulary, D model width.
Source: Liu et al. (2021), section 3.2. Deviation: weights sum to one. Equations 2 and 3 print a further
factor 1/|S_m|, which is absent from the authors' code and would shrink every generated row;
`scale="inv_size"` restores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nlgraft.nn.batch import Tokens
from nlgraft.vocab.methods.interface import Method, Request, Rows
from nlgraft.vocab.methods.registry import weighted_rows
from nlgraft.vocab.methods.similar import NUM_RELATIONS, Relation, Similar

Kind = Literal["att", "patt"]
Scale = Literal["none", "inv_size"]

CHUNK_TOKENS = 4096
"""Tokens generated at once when a whole vocabulary is generated: limits memory, does not affect results."""


class EmbeddingGenerator(nn.Module):
    """Generates the embedding of a token from those of its similar tokens.

    ATT has one weight vector, PATT one for each relation. They begin with zeros, with which both are AVG.
    """

    def __init__(self, kind: Kind, d_model: int, *, scale: Scale = "none") -> None:
        """Build the generator.

        Args:
            kind: att (eq. 2) or patt (eq. 3).
            d_model: Width D.
            scale: ``inv_size`` multiplies by 1/|S_m| as equations 2 and 3 print it.
        """
        super().__init__()
        self.kind = kind
        self.scale = scale
        self.weight = nn.Parameter(torch.zeros((d_model,) if kind == "att" else (NUM_RELATIONS, d_model)))

    def weights(self, rows_NWD: Tensor, relations_NW: Tensor) -> Tensor:
        """Weigh the similar tokens.

        Args:
            rows_NWD: Old rows of the similar tokens; the contents of padded slots are ignored.
            relations_NW: ``Relation`` of each slot, PAD where there is no token.

        Returns:
            Weights [N, W], zero in padded slots; they sum to one (to 1/|S_m| with ``inv_size``) wherever
            there is a similar token.
        """
        valid_NW = relations_NW != int(Relation.PAD)
        if self.kind == "att":
            scores_NW = rows_NWD @ self.weight
        else:
            # one product with the vectors of all relations, then select that of each slot
            all_NWR = rows_NWD @ self.weight.T
            scores_NW = all_NWR.gather(2, relations_NW.clamp(max=NUM_RELATIONS - 1)[..., None])[..., 0]
        scores_NW = scores_NW.masked_fill(~valid_NW, float("-inf"))
        # a token without similar tokens has no softmax: its weights are zero, not NaN
        scores_NW = scores_NW.masked_fill(~valid_NW.any(1, keepdim=True), 0.0)
        weights_NW = scores_NW.softmax(1) * valid_NW
        if self.scale == "inv_size":
            weights_NW = weights_NW / valid_NW.sum(1, keepdim=True).clamp(min=1)
        return weights_NW


def combine(weights_NW: Tensor, rows_NWD: Tensor) -> Tensor:
    """Sum rows by weight, [N, D]. Slots of weight zero must be finite, since 0 x inf is NaN."""
    return torch.einsum("nw,nwd->nd", weights_NW, rows_NWD)


def extended(table: Tensor, weights_NW: Tensor, members_NW: Tensor) -> Tensor:
    """Append generated rows to a table, or generated entries to a bias: [E ; G].

    Args:
        table: Old rows [V, D], or old entries [V].
        weights_NW: Weights of the similar tokens, zero in padded slots.
        members_NW: Their ids.

    Returns:
        [V + N, D], or [V + N].
    """
    is_bias = table.ndim == 1
    rows_VD = table[:, None] if is_bias else table
    generated_ND = combine(weights_NW, rows_VD[members_NW]).to(table.dtype)
    return torch.cat([table, generated_ND[:, 0] if is_bias else generated_ND])


def padded(similar: Sequence[Similar]) -> tuple[Tensor, Tensor]:
    """Lay S_m of N tokens out as a rectangle: members, and relations padded with ``Relation.PAD``, [N, W]."""
    members = Tokens.from_lists([[member for member, _ in row] for row in similar])
    relations = Tokens.from_lists([[int(relation) for _, relation in row] for row in similar], Relation.PAD)
    return members.ids, relations.ids


@torch.no_grad()
def generator_method(name: str, generator: EmbeddingGenerator, table_VD: Tensor) -> Method:
    """Wrap a trained generator as a method of transfer plans; its weights depend on the rows of the table."""

    def produce(request: Request) -> Rows:
        similar = request.similar()
        weights: list[dict[int, float]] = []
        for start in range(0, len(similar), CHUNK_TOKENS):
            chunk = similar[start : start + CHUNK_TOKENS]
            members_NW, relations_NW = padded(chunk)
            weights_NW = generator.weights(table_VD[members_NW].float(), relations_NW).tolist()
            for members, row in zip(chunk, weights_NW, strict=True):
                weights.append({member: weight for (member, _), weight in zip(members, row, strict=False)})
        return weighted_rows(similar, weights)

    return Method(name=name, produce=produce, source="Liu et al. (2021), eq. 2 and 3")
