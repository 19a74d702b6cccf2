"""Pretrained encoders as contexts: settings and inputs of their stages."""

from __future__ import annotations

from dataclasses import dataclass

from nlgraft.nn.context_config import PoolingConfig, Precision
from nlgraft.stages.kinds.released_kinds import CHECKPOINTS, CheckpointSettings
from nlgraft.stages.kinds.text_kinds import NoInputs
from nlgraft.stages.stage_kind import Inputs, NoSettings, Settings, StageKind, T
from nlgraft.text.corpus_config import Split
from nlgraft.training.train_config import Side


class StateMeansSettings(Settings):
    """The means of the hidden states of a frozen encoder over one stream of the encoded training text.

    Only what decides the states is in here, so that all contexts that read the same layers of the same
    encoder share one artifact, however they pool, merge or drop them.
    """

    selection: PoolingConfig
    """Layers that are read: ``PoolingConfig.selection()``."""
    side: Side
    """The stream, and the ids around its sequences."""
    prepend_id: int | None = None
    """Token put before every sequence and dropped from the states."""
    max_tokens: int | None = None
    """Longest input of the encoder; longer ones keep their first and last halves. Null: no limit."""


class FrozenStatesSettings(StateMeansSettings):
    """The hidden states of a frozen encoder on one stream of encoded text, as they are: never centred."""

    splits: tuple[Split, ...] = ("train", "dev")
    """Splits to run, among those that are encoded."""
    precision: Precision = "fp32"
    """fp32 reproduces the live encoder exactly; fp16 and bf16 halve the files, bf16 also runs the encoder."""


@dataclass(frozen=True, kw_only=True)
class FrozenStatesInputs(Inputs[T]):
    """Encoded text, and the encoder: a released one or a language model of ours."""

    encoded: T
    encoder: T


@dataclass(frozen=True, kw_only=True)
class RandomEncoderInputs(Inputs[T]):
    """A pretrained encoder of transformers, whose architecture is taken."""

    encoder: T


CHECKPOINT_ENCODER = StageKind(
    "nlgraft.stages.run.context_stages:copy_encoder", CheckpointSettings, NoInputs, check=CHECKPOINTS
)
RANDOM_ENCODER = StageKind("nlgraft.stages.run.context_stages:draw_encoder", NoSettings, RandomEncoderInputs)
STATE_MEANS = StageKind(
    "nlgraft.stages.run.context_stages:write_means", StateMeansSettings, FrozenStatesInputs
)
FROZEN_STATES = StageKind(
    "nlgraft.stages.run.context_stages:write_states", FrozenStatesSettings, FrozenStatesInputs
)
