"""Interface of the methods that fill new rows: request, answer, and a method's properties.

Whatever the method, special tokens are matched by role, and rows of tokens that both vocabularies share are
copied (unless the method replaces them too); the method decides about the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nlgraft.vocab.methods.similar import DEFAULT_CAP, Similar, SimilarTokens
from nlgraft.vocab.tokenizers.vocabulary import Tok, Vocabulary
from nlgraft.vocab.transfer_plan import Array, Noise

VectorKind = Literal["skipgram", "cbow"]


@dataclass(frozen=True)
class TokenVectors:
    """Vectors of a vocabulary's tokens learned from text, unrelated to the model's own embeddings.

    Attributes:
        vectors: One row for each id, shape [V, k].
        counts: Frequency of each token in the text, int64, shape [V].
        min_count: Tokens that occur less often count as unknown.
    """

    vectors: Array
    counts: NDArray[np.int64]
    min_count: int = 1

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """Mask of the tokens with a usable vector, shape [V]."""
        return self.counts >= self.min_count


@dataclass(frozen=True)
class PlanChoices:
    """Settings of a plan.

    Attributes:
        cap: Size limit of the set of similar tokens; None for no limit.
        noise_std: Standard deviation of a new model's embeddings, for methods that draw with a fixed one.
        seed: Seed of all that is drawn: rows, old tokens, partitions.
    """

    cap: int | None = DEFAULT_CAP
    noise_std: float | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class PlanMaterial:
    """Inputs of some methods besides the two vocabularies.

    Attributes:
        old_rows: The old embeddings [R, d], for methods that learn from them.
        new_vectors: Vectors of new tokens from text, for methods that compare tokens by distribution.
        old_vectors: Vectors of old tokens from text, likewise.
        donor: Rows of new tokens in a model that has them, for methods that compare tokens in its space;
            those that it lacks have count 0.
    """

    old_rows: Array | None = None
    new_vectors: TokenVectors | None = None
    old_vectors: TokenVectors | None = None
    donor: TokenVectors | None = None


DEFAULT_CHOICES = PlanChoices()
NO_MATERIAL = PlanMaterial()


@dataclass(frozen=True, eq=False)
class Request:
    """Tokens that need rows, and everything a method may use.

    Attributes:
        old: The vocabulary with embeddings.
        new: The vocabulary that gets them.
        missing: New ids without an exact copy.
        shared: (new id, old id) of every token of text that both vocabularies have.
        choices: Settings of the plan.
        material: Inputs of some methods besides the vocabularies.
    """

    old: Vocabulary
    new: Vocabulary
    missing: Sequence[int]
    shared: Sequence[tuple[int, int]]
    choices: PlanChoices
    material: PlanMaterial

    @property
    def tokens(self) -> list[Tok]:
        """The missing tokens with the old tokenizer's normalisation."""
        return [self.old.normalised(self.new.token(identity)) for identity in self.missing]

    def similar(self) -> list[Similar]:
        """S_m of the missing tokens."""
        index = SimilarTokens(self.old, self.choices.cap)
        return [index.of(tok) for tok in self.tokens]


@dataclass(frozen=True)
class Rows:
    """Answer of a method: rows of the missing tokens, in their order.

    Attributes:
        weights: Old id -> weight; empty when the method has no answer.
        reasons: Explanations in words.
        dense: Vectors from outside the old matrix, shape [len(missing), d]; None for methods that combine
            rows.
    """

    weights: Sequence[Mapping[int, float]]
    reasons: Sequence[str]
    dense: Array | None = None


def shares(ids: Sequence[int]) -> dict[int, float]:
    """Weigh old ids by how often they are given."""
    weights = dict.fromkeys(ids, 0.0)
    for identity in ids:
        weights[identity] += 1 / len(ids)
    return weights


Producer = Callable[[Request], Rows]


@dataclass(frozen=True)
class Method:
    """One published way to fill missing rows.

    Attributes:
        name: Name in studies and on the command line.
        produce: Function from a request to rows.
        source: Publication.
        noise: Distribution of rows for which the method has no answer.
        has_fallback: Such rows first try the other boundary variant, then the token's characters.
        has_copies: Tokens of both vocabularies keep their old rows.
        vectors: Kind of the vectors of new tokens that it needs, if any.
        needs_old_vectors: It needs vectors of the old tokens, too.
        has_vector_rows: Those vectors become rows themselves and so have the model's width.
        needs_old_rows: It needs the old embeddings themselves.
        has_similar_tokens: It reads S_m, whose size can be chosen.
        needs_donor: It needs a model that has the new tokens.
    """

    name: str
    produce: Producer
    source: str
    noise: Noise = field(default_factory=Noise)
    has_fallback: bool = True
    has_copies: bool = True
    vectors: VectorKind | None = None
    needs_old_vectors: bool = False
    has_vector_rows: bool = False
    needs_old_rows: bool = False
    has_similar_tokens: bool = False
    needs_donor: bool = False

    @property
    def needs(self) -> list[str]:
        """Inputs beyond the two vocabularies, in words."""
        requirements = ["text"] if self.vectors else []
        if self.needs_old_rows or self.has_vector_rows:
            requirements.append("the model")
        if self.needs_donor:
            requirements.append("a donor")
        return requirements
