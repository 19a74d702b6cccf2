"""Objective, losses and files of masked language models, and their use as encoder and decoder.

Shape letters: V vocabulary, M positions whose token is predicted, N lines of a split.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.sufficient import Statistics
from nlgraft.nn.conversion.encoders import PredictionHead
from nlgraft.nn.masked_lm_models import (
    NOT_PREDICTED,
    EncoderMaskedLM,
    MaskedBatch,
    MaskedLM,
    TransformersMaskedLM,
    load_checkpoint,
)
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.modes import seeded
from nlgraft.text.files import read_json, write_json
from nlgraft.training.losses import Predictions, segment_losses
from nlgraft.training.masked_text import MaskedScoringData
from nlgraft.training.weights import carry_over, load_model, save_model

LOSS, PER_CHARACTER = "loss", "mlm_loss_per_char"
ENCODER_DESCRIPTION = "masked_encoder.json"


def predict_masked(model: MaskedLM, batch: MaskedBatch) -> Predictions:
    """Predict the masked tokens of a batch."""
    _, logits_MV = model(batch)
    return Predictions(logits_MV, batch.targets, (batch.labels != NOT_PREDICTED).nonzero()[:, 0])


def masked_losses(
    model: MaskedLM, data: MaskedScoringData, device: torch.device | str = "cpu"
) -> dict[str, Statistics]:
    """Compute nats with masked tokens and, where words are masked, with their characters: lines, [N, 2]."""
    rows_N2 = segment_losses(model, data.in_order(), len(data.masker), device, predict_masked)
    statistics = {LOSS: rows_N2}
    if (characters_N := data.characters()) is not None:
        statistics[PER_CHARACTER] = np.stack([rows_N2[:, 0], characters_N], 1)
    return statistics


def write_masked_lm(model: MaskedLM, directory: Path) -> None:
    """Write a model into an artifact; a model of transformers in its own format."""
    if isinstance(model, TransformersMaskedLM):
        model.write(directory)
        return
    assert isinstance(model, EncoderMaskedLM)
    save_model(model, directory)
    description = {
        "config": model.model.config.model_dump(mode="json"),
        "vocab_size": len(model.input_table),
        "has_head": model.head is not None,
        "can_predict": model.can_predict,
    }
    write_json(directory / ENCODER_DESCRIPTION, description)


def read_masked_lm(directory: Path) -> MaskedLM:
    """Read what ``write_masked_lm`` wrote, on the CPU.

    Raises:
        DataError: Parameters are missing.
    """
    if not (directory / ENCODER_DESCRIPTION).is_file():
        model, missing = load_checkpoint(str(directory), None, 0)
        if missing:
            raise DataError(f"{directory}: the model lacks {', '.join(missing[:3])}; run its stage again")
        return model
    description = read_json(directory / ENCODER_DESCRIPTION)
    model = fresh_encoder(
        TransformerConfig(**description["config"]),
        description["vocab_size"],
        has_head=description["has_head"],
        can_predict=description["can_predict"],
    )
    load_model(model, directory)
    return model


def fresh_encoder(
    config: TransformerConfig,
    vocab_size: int,
    *,
    has_head: bool = False,
    can_predict: bool = True,
    seed: int = 0,
) -> EncoderMaskedLM:
    """Build a masked language model on the encoder of our Transformer, with fresh weights."""
    config = config.model_copy(update={"tying": "all"})
    with seeded(seed):
        body = Seq2Seq(config, vocab_size, vocab_size)
        head = PredictionHead(config) if has_head else None
    return EncoderMaskedLM(body, head, can_predict=can_predict)


def bert2bert(masked: EncoderMaskedLM, config: TransformerConfig, fresh: Seq2Seq) -> Seq2Seq:
    """Initialise both sides of an encoder-decoder with a masked language model; cross-attention stays fresh.

    Args:
        masked: The pretrained encoder.
        config: Configuration of the encoder-decoder, whose decoder is as deep as its encoder.
        fresh: A new model of that config; changed in place.

    Returns:
        ``fresh``, with the encoder's tables on both sides.

    Source: Rothe et al. (2020), section 2 (BERT2BERT).
    """
    state = masked.model.state_dict()
    encoder = {
        name: tensor
        for name, tensor in state.items()
        if name.startswith(("source_embedding.", "source_input.", "encoder.", "encoder_norm."))
    }
    decoder = {
        name.replace("source_", "target_", 1).replace("encoder", "decoder", 1): tensor
        for name, tensor in encoder.items()
    }
    output = {name: tensor for name, tensor in state.items() if name.startswith("output_projection.")}
    # a prediction bias stays with the masked language model unless the other has one, too
    dropped = [] if config.has_output_bias else [r"^output_projection\.bias$"]
    carry_over(fresh, encoder | decoder | output, fresh=[r"^decoder\.\d+\.cross_"], drop=dropped)
    return fresh
