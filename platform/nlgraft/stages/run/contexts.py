"""Pretrained encoders as contexts: released ones in the store, and the states of frozen ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from nlgraft.nn.context_config import ContextConfig, HuggingFaceEncoderConfig
from nlgraft.nn.contextual import Context, ContextualEmbedding
from nlgraft.nn.frozen_states import write_frozen_states
from nlgraft.nn.hugging_face import load_base_model
from nlgraft.nn.transformers_loading import quiet_transformers
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.kinds.contexts import (
    CHECKPOINT_ENCODER,
    FROZEN_STATES,
    RANDOM_ENCODER,
    FrozenStatesSettings,
)
from nlgraft.stages.run.text import read_encoded
from nlgraft.training.models import read_encoder
from nlgraft.training.views import prepare_side

_LOG = logging.getLogger(__name__)


def copy_encoder(context: StageContext) -> None:
    """Take the base model of a released checkpoint, in fp32, as a directory of transformers."""
    settings, _ = CHECKPOINT_ENCODER.read(context)
    checkpoint = context.locations["checkpoint"]
    model: Any = load_base_model(HuggingFaceEncoderConfig(checkpoint=checkpoint, revision=settings.revision))
    with quiet_transformers():
        model.save_pretrained(context.directory)


def draw_encoder(context: StageContext) -> None:
    """Write an encoder of the architecture of a pretrained one, with random weights: a control."""
    from transformers import AutoConfig, AutoModel

    _, inputs = RANDOM_ENCODER.read(context)
    assert context.seed is not None
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(context.seed)
        model: Any = AutoModel.from_config(AutoConfig.from_pretrained(inputs.encoder), dtype=torch.float32)
        model.save_pretrained(context.directory)


def write_states(context: StageContext) -> None:
    """Run a frozen encoder over encoded text; write one file of states per split."""
    settings, inputs = FROZEN_STATES.read(context)
    reader = _reader(settings, inputs.encoder)
    reader.to(context.device).eval()
    for split in settings.splits:
        stream = read_encoded(inputs.encoded, split).stream(settings.side.stream)
        sequences, num_cut = prepare_side(stream, settings.side)
        if num_cut:
            _LOG.warning(
                "%s, %s: %d of %d sequences were cut", split, settings.side.stream, num_cut, len(stream)
            )
        path = context.directory / f"{split}.safetensors"
        rows = [row.tolist() for row in sequences]
        write_frozen_states(path, reader, rows, precision=settings.precision)


def _reader(settings: FrozenStatesSettings, encoder: Path) -> Context | ContextualEmbedding:
    config = ContextConfig(
        encoder=HuggingFaceEncoderConfig(),  # only names the model, which is handed over
        pooling=settings.selection,
        prepend_id=settings.prepend_id,
        max_tokens=settings.max_tokens,
    )
    context = Context(config, read_encoder(encoder))
    return context if settings.prepend_id is None else ContextualEmbedding(context, context.output_dim)
