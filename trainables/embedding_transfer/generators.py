"""Embedding generators: AVG-EG, ATT-EG and PATT-EG.

Shape letters: N tokens to generate, W width of the table of similar tokens, V old vocabulary, D model width.
Source: Liu et al. (2021), section 3.2. Deviation: weights sum to one. Equations 2 and 3 print a further
factor 1/|S_m|, which is absent from the authors' code and would shrink every generated row;
`scale="inv_size"` restores it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from nlgraft.vocab.methods.averages import weighted_rows
from nlgraft.vocab.methods.interface import Method, Request, Rows
from nlgraft.vocab.methods.similar import NUM_RELATIONS, Relation, SimilarTokens

Kind = Literal["avg", "att", "patt"]
Scale = Literal["none", "inv_size"]
Init = Literal["zeros", "normal"]

CHUNK_TOKENS = 4096
"""Tokens generated at once when a whole vocabulary is generated: limits memory, does not affect results."""


class EmbeddingGenerator(nn.Module):
    """Generates the embedding of a token from those of its similar tokens.

    AVG has no parameters, ATT one weight vector, PATT one for each relation. With zero weights both are AVG.
    """

    weight: nn.Parameter | None

    def __init__(self, kind: Kind, d_model: int, *, scale: Scale = "none", init: Init = "zeros") -> None:
        """Build the generator; ``init="normal"`` draws from torch's global generator.

        Args:
            kind: avg (eq. 1), att (eq. 2) or patt (eq. 3).
            d_model: Width D.
            scale: ``inv_size`` multiplies by 1/|S_m| as equations 2 and 3 print it.
            init: Zero weights, so that training starts from AVG; or N(0, 1), as the authors' code.
        """
        super().__init__()
        self.kind = kind
        self.scale = scale
        if kind == "avg":
            self.register_parameter("weight", None)
            return
        shape = (d_model,) if kind == "att" else (NUM_RELATIONS, d_model)
        self.weight = nn.Parameter(torch.zeros(shape) if init == "zeros" else torch.randn(shape))

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
        size_N1 = valid_NW.sum(1, keepdim=True).clamp(min=1).to(rows_NWD.dtype)
        if self.weight is None:
            return valid_NW / size_N1
        if self.kind == "att":
            scores_NW = rows_NWD @ self.weight
        else:
            # one product with the vectors of all relations, then select that of each slot
            all_NWR = rows_NWD @ self.weight.T
            own_NW1 = relations_NW.clamp(max=NUM_RELATIONS - 1)[..., None]
            scores_NW = all_NWR.gather(2, own_NW1)[..., 0]
        scores_NW = scores_NW.masked_fill(~valid_NW, float("-inf"))
        # a token without similar tokens has no softmax: its weights are zero, not NaN
        scores_NW = scores_NW.masked_fill(~valid_NW.any(1, keepdim=True), 0.0)
        weights_NW = scores_NW.softmax(1) * valid_NW
        return weights_NW / size_N1 if self.scale == "inv_size" else weights_NW

    def forward(self, table_VD: Tensor, members_NW: Tensor, relations_NW: Tensor) -> Tensor:
        """Generate rows [N, D] from similar tokens of a table; zero where there is no similar token."""
        rows_NWD = table_VD[members_NW]
        weights_NW = self.weights(rows_NWD, relations_NW)
        return combine(weights_NW, rows_NWD)


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


@torch.no_grad()
def generator_weights(
    generator: EmbeddingGenerator, table_VD: Tensor, similar: SimilarTokens
) -> list[dict[int, float]]:
    """Weigh the similar tokens of N tokens: old id -> weight of each, empty where there is none."""
    members, relations = (torch.from_numpy(array) for array in similar.padded())
    weights: list[dict[int, float]] = []
    for start in range(0, len(similar), CHUNK_TOKENS):
        ids_NW = members[start : start + CHUNK_TOKENS].to(table_VD.device)
        kinds_NW = relations[start : start + CHUNK_TOKENS].to(table_VD.device)
        weights_NW = generator.weights(table_VD[ids_NW].float(), kinds_NW).cpu()
        sizes = similar.sizes[start : start + CHUNK_TOKENS]
        for row, size in enumerate(sizes.tolist()):
            slots = zip(ids_NW[row, :size].tolist(), weights_NW[row, :size].tolist(), strict=True)
            weights.append(dict(slots))
    return weights


def generator_method(name: str, generator: EmbeddingGenerator, table_VD: Tensor) -> Method:
    """Wrap a trained generator as a method of transfer plans; its weights depend on the rows of the table."""

    def produce(request: Request) -> Rows:
        similar = request.similar()
        return weighted_rows(similar, generator_weights(generator, table_VD, similar))

    return Method(name=name, produce=produce, source="Liu et al. (2021), eq. 2 and 3")
