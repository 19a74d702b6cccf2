"""Pieces of stage graphs for pretrained encoders, without torch: tokenizers, encoders, frozen states.

A released encoder becomes an artifact of its own, so that training reads it from the store and its directory
may move: the configuration of the model that is trained names no checkpoint.
"""

from __future__ import annotations

from nlgraft.basics.errors import ContractError
from nlgraft.nn.context_config import ContextConfig, HuggingFaceEncoderConfig, Precision
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.kinds.context_kinds import (
    CHECKPOINT_ENCODER,
    FROZEN_STATES,
    RANDOM_ENCODER,
    STATE_MEANS,
    FrozenStatesInputs,
    FrozenStatesSettings,
    RandomEncoderInputs,
    StateMeansSettings,
)
from nlgraft.stages.kinds.masked_lm_kinds import CHECKPOINT_TOKENIZER
from nlgraft.stages.kinds.released_kinds import CheckpointSettings
from nlgraft.stages.kinds.text_kinds import NoInputs
from nlgraft.stages.released_graph import checkpoint_settings
from nlgraft.stages.seq2seq_graph import EncodedText
from nlgraft.stages.stage_kind import NoSettings
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


def random_encoder(name: str, encoder: Stage, *, seed: int) -> Stage:
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
    return FROZEN_STATES.stage(name, settings, FrozenStatesInputs(encoded=text.stage, encoder=encoder))


def state_means(name: str, text: EncodedText, context: ContextConfig, side: Side, encoder: Stage) -> Stage:
    """Average the states of a frozen context over one stream of the training text, for a centred pooling."""
    inputs = FrozenStatesInputs(encoded=text.stage, encoder=encoder)
    return STATE_MEANS.stage(name, _reading(context, side), inputs)


def _reading(context: ContextConfig, side: Side) -> StateMeansSettings:
    return StateMeansSettings(
        selection=context.pooling.selection(),
        side=side,
        prepend_id=context.prepend_id,
        max_tokens=context.max_tokens,
    )
