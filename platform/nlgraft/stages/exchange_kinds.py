"""Exchange of a model's vocabulary: settings and inputs of the stages of vectors, plans and the exchange.

A plan says where each new row comes from. It is made here by a method of ``nlgraft.vocab.methods``, or by any
other stage that writes ``plan-encoder`` and ``plan-decoder`` as ``TransferPlan.save`` does. A model with one
table for all has the side `SIDE` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nlgraft.stages.config_parts import VectorsConfig
from nlgraft.stages.stage_kind import Inputs, NoSettings, Settings, StageKind, T

SIDE = "encoder"
"""The side of a model with one table for all, such as a masked language model."""


class VectorSettings(Settings):
    """Vectors of the tokens of some vocabularies, learned from training text; as wide as the model."""

    kind: Literal["skipgram", "cbow"]
    """Predict the context of a token, or a token from its context."""
    vectors: VectorsConfig
    """Passes over the text and batch size."""
    streams: Mapping[str, str]
    """Stream of encoded text of each side."""


@dataclass(frozen=True, kw_only=True)
class VectorInputs(Inputs[T]):
    """Encoded text, the tokenizer of each side, and the model whose width counts."""

    encoded: T
    tokenizers: Mapping[str, T]
    model: T


class PlanSettings(Settings):
    """Rows of the new vocabularies of some sides."""

    method: str
    """Name of a method of ``nlgraft.vocab.methods``."""
    cap: int | None = None
    """Largest number of similar tokens of a token, for methods that use them; null: all."""
    # Constants: fingerprints of stored plans hold them.
    norm_match: Literal["none"] = "none"
    order: Literal["id"] = "id"
    streams: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class PlanInputs(Inputs[T]):
    """The model, its tokenizers and the new ones by side, and what some methods read.

    ``donor`` is a model with one table that has the new tokens, with its tokenizer.
    """

    model: T
    old: Mapping[str, T]
    new: Mapping[str, T]
    new_vectors: T | None = None
    old_vectors: T | None = None
    donor: T | None = None
    donor_tokenizer: T | None = None


@dataclass(frozen=True, kw_only=True)
class ExchangeInputs(Inputs[T]):
    """A model, ours or of transformers, and the plan of each side whose vocabulary is exchanged."""

    model: T
    plans: T


VECTORS = StageKind("nlgraft.stages.run.exchange_stages:learn_token_vectors", VectorSettings, VectorInputs)
PLAN = StageKind("nlgraft.stages.run.exchange_stages:plan", PlanSettings, PlanInputs, version=2)
EXCHANGE = StageKind("nlgraft.stages.run.exchange_stages:exchange", NoSettings, ExchangeInputs)
