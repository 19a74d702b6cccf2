"""Pretrained encoders as contexts: released ones in the store, and the states of frozen ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.nn.context_config import ContextConfig, HuggingFaceEncoderConfig
from nlgraft.nn.contextual import Context, ContextualEmbedding
from nlgraft.nn.frozen_states import state_means, write_frozen_states
from nlgraft.nn.hugging_face import load_base_model
from nlgraft.nn.modes import seeded
from nlgraft.nn.transformers_lms import quiet_transformers
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.context_graph import (
    CHECKPOINT_ENCODER,
    FROZEN_STATES,
    RANDOM_ENCODER,
    STATE_MEANS,
    StateMeansSettings,
)
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.training.models import read_encoder
from nlgraft.training.precision import has_bf16, measure_gain, write_choice
from nlgraft.training.train_config import Side
from nlgraft.training.views import prepare_side

MEANS_FILE = "means.safetensors"
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
    with seeded(context.seed), quiet_transformers():
        model: Any = AutoModel.from_config(AutoConfig.from_pretrained(inputs.encoder), dtype=torch.float32)
        model.save_pretrained(context.directory)


def write_states(context: StageContext) -> None:
    """Run a frozen encoder over encoded text; write one file of states per split."""
    settings, inputs = FROZEN_STATES.read(context)
    reader = _reader(settings, inputs.encoder).to(context.device).eval()
    if settings.precision == "bf16" and not has_bf16(context.device):
        _LOG.warning("%s has no instructions for bf16: fp32 or fp16 states are made faster", context.device)
    for split in settings.splits:
        path = context.directory / f"{split}.safetensors"
        rows = _sequences(inputs.encoded, split, settings.side)
        write_frozen_states(path, reader, rows, precision=settings.precision)


def write_means(context: StageContext) -> None:
    """Run a frozen encoder over the encoded training text; write the mean of each layer."""
    settings, inputs = STATE_MEANS.read(context)
    reader = _reader(settings, inputs.encoder).to(context.device).eval()
    means_LH = state_means(reader, _sequences(inputs.encoded, "train", settings.side))
    save_file({"means": means_LH}, context.directory / MEANS_FILE)


def read_means(directory: Path) -> Tensor:
    """Read the means that ``write_means`` wrote, [L, H]."""
    return load_file(directory / MEANS_FILE)["means"]


def _sequences(
    encoded: Path,
    split: str,
    side: Side,
) -> list[list[int]]:
    stream = read_encoded(encoded, split).stream(side.stream)
    sequences, num_cut = prepare_side(stream, side)
    if num_cut:
        _LOG.warning("%s, %s: %d of %d sequences were cut", split, side.stream, num_cut, len(stream))
    return [row.tolist() for row in sequences]


def _reader(settings: StateMeansSettings, encoder: Path) -> Context | ContextualEmbedding:
    config = ContextConfig(
        encoder=HuggingFaceEncoderConfig(),  # only names the model, which is handed over
        pooling=settings.selection,
        prepend_id=settings.prepend_id,
        max_tokens=settings.max_tokens,
    )
    context = Context(config, read_encoder(encoder))
    return context if settings.prepend_id is None else ContextualEmbedding(context, context.output_dim)


# The stage that measures and chooses a precision.


def choose(context: StageContext) -> None:
    """Measure how much faster bf16 is than fp32 here, and write which of them trainings are to use."""
    gain = measure_gain(context.device)
    is_bf16 = write_choice(context.directory, gain)
    signature = "speed of bf16 by that of fp32 in training; 0: not supported"
    scores = {
        "precision/is_bf16": Score(float(is_bf16), 1, "maximize", "1: bf16, 0: fp32"),
        "precision/bf16_gain": Score(gain, 1, "maximize", signature),
    }
    write_metrics(context.directory, scores)
