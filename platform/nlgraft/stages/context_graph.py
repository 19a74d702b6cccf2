"""Pieces of stage graphs for pretrained encoders, without torch: tokenizers, encoders, frozen states.

A released encoder becomes an artifact of its own, so that training reads it from the store and its directory
may move: the configuration of the model that is trained names no checkpoint.
"""

from __future__ import annotations

from nlgraft.basics.errors import ContractError
from nlgraft.nn.context_config import ContextConfig, HuggingFaceEncoderConfig, PoolingConfig, Precision
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.masked_lm_graph import CHECKPOINT_TOKENIZER
from nlgraft.stages.released_graph import CHECKPOINTS, CheckpointSettings, checkpoint_settings
from nlgraft.stages.stage_kind import Inputs, NoInputs, NoSettings, Settings, StageKind, T
from nlgraft.stages.text_graph import EncodedText
from nlgraft.text.corpus_config import Split
from nlgraft.training.train_config import Side


def context_side(name: str) -> Side:
    """Name the stream of a context, whose tokenizer adds the special tokens of its checkpoint."""
    return Side(stream=f"context {name}", suffix=())


def released_encoder(name: str, config: HuggingFaceEncoderConfig) -> Stage:
    """Take a released encoder into the store."""
    settings, locations = _released(config)
    return CHECKPOINT_ENCODER.stage(f"{name}_encoder", settings, NoInputs(), locations=locations)


def released_tokenizer(name: str, config: HuggingFaceEncoderConfig) -> Stage:
    """Take the tokenizer of a released encoder into the store."""
    settings, locations = _released(config)
    return CHECKPOINT_TOKENIZER.stage(f"{name}_tokenizer", settings, NoInputs(), locations=locations)


def random_encoder(
    name: str,
    encoder: Stage,
    *,
    seed: int,
) -> Stage:
    """Draw an encoder of the architecture of a pretrained one: the control of its knowledge."""
    return RANDOM_ENCODER.stage(
        f"{name}_random", NoSettings(), RandomEncoderInputs(encoder=encoder), seed=seed
    )


def _released(config: HuggingFaceEncoderConfig) -> tuple[CheckpointSettings, dict[str, str]]:
    settings = checkpoint_settings(config.checkpoint, config.revision)
    if settings is None or config.checkpoint is None:
        raise ContractError("the encoder of a context names no checkpoint")
    return settings, {"checkpoint": config.checkpoint, "read_as": "encoder"}


def frozen_states(
    name: str,
    text: EncodedText,
    context: ContextConfig,
    side: Side,
    encoder: Stage,
    *,
    precision: Precision = "fp32",
) -> Stage:
    """Compute the states of a frozen context on one stream of encoded text.

    Raises:
        ContractError: The encoder is finetuned or keeps its dropout, so its states vary.
    """
    if not context.is_frozen or context.has_frozen_dropout:
        raise ContractError(
            f"stage {name}: is_frozen is {context.is_frozen} and has_frozen_dropout "
            f"{context.has_frozen_dropout}, but only a frozen encoder without dropout has states that can be "
            "stored; run it live"
        )
    read = _reading(context, side).model_dump()
    # Only what decides the states, so that contexts which pool them differently share the files.
    settings = FrozenStatesSettings(**read, precision=precision)
    return FROZEN_STATES.stage(name, settings, FrozenStatesInputs(encoded=text.encoded, encoder=encoder))


def state_means(
    name: str,
    text: EncodedText,
    context: ContextConfig,
    side: Side,
    encoder: Stage,
) -> Stage:
    """Average the states of a frozen context over one stream of the training text, for a centred pooling."""
    # Of the training text alone, since dev and test must not shape the model.
    inputs = FrozenStatesInputs(encoded=text.encoded, encoder=encoder)
    return STATE_MEANS.stage(name, _reading(context, side), inputs)


def _reading(context: ContextConfig, side: Side) -> StateMeansSettings:
    return StateMeansSettings(
        selection=context.pooling.selection(),
        side=side,
        prepend_id=context.prepend_id,
        max_tokens=context.max_tokens,
    )


# Pretrained encoders as contexts: settings and inputs of their stages.


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


class FrozenStatesInputs(Inputs[T]):
    """Encoded text, and the encoder: a released one or a language model of ours."""

    encoded: T
    encoder: T


class RandomEncoderInputs(Inputs[T]):
    """A pretrained encoder of transformers, whose architecture is taken."""

    encoder: T


CHECKPOINT_ENCODER = StageKind(
    "nlgraft.stages.run.context_stages:copy_encoder",
    CheckpointSettings,
    NoInputs,
    keeps="weights",
    check=CHECKPOINTS,
)
RANDOM_ENCODER = StageKind(
    "nlgraft.stages.run.context_stages:draw_encoder", NoSettings, RandomEncoderInputs, keeps="weights"
)
STATE_MEANS = StageKind(
    "nlgraft.stages.run.context_stages:write_means",
    StateMeansSettings,
    FrozenStatesInputs,
    workers="first",
    keeps="means",
)
FROZEN_STATES = StageKind(
    "nlgraft.stages.run.context_stages:write_states",
    FrozenStatesSettings,
    FrozenStatesInputs,
    workers="first",
    keeps="states",
)
