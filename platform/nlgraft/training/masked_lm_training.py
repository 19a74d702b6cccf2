"""Objective, losses and files of masked language models, and their use as encoder and decoder.

Shape letters: B lines, D width, V vocabulary, M positions whose token is predicted, N lines of a split.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.nn.conversion.encoders import PredictionHead
from nlgraft.nn.masked_lm_models import (
    EncoderMaskedLM,
    MaskedBatch,
    MaskedLM,
    TransformersMaskedLM,
    load_checkpoint,
)
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.training.cross_entropy import smoothed_cross_entropy
from nlgraft.training.losses import Loss
from nlgraft.training.masked_text import MaskedScoringData
from nlgraft.training.train_config import SmoothingKind
from nlgraft.training.weights import carry_over, load_model, save_model

ENCODER_DESCRIPTION = "masked_encoder.json"


@dataclass(frozen=True)
class MaskedObjective:
    """Cross-entropy of the masked tokens.

    Attributes:
        smoothing: Probability mass taken from the true token.
        kind: Tokens among which it is distributed.
    """

    smoothing: float = 0.0
    kind: SmoothingKind = "uniform_all"

    def __call__(self, model: MaskedLM, batch: MaskedBatch) -> Loss:
        """Compute the summed loss of a batch and its number of masked tokens."""
        _, logits_MV = model(batch)
        targets_M = batch.targets
        return Loss(smoothed_cross_entropy(logits_MV, targets_M, self.smoothing, self.kind), len(targets_M))


@dataclass(frozen=True)
class MaskedLosses:
    """Negative log-likelihood of the masked tokens of every line.

    Attributes:
        nats: Negative log-likelihood of each line in nats, [N].
        tokens: Masked tokens of each line, [N].
        characters: Characters of the masked words of each line, [N]; None if single tokens are masked.
        unknown: Masked tokens that stand for text outside the vocabulary, [N].
    """

    nats: NDArray[np.float64]
    tokens: NDArray[np.float64]
    characters: NDArray[np.float64] | None
    unknown: NDArray[np.float64]


@torch.no_grad()
def masked_losses(
    model: MaskedLM, data: MaskedScoringData, device: torch.device | str = "cpu"
) -> MaskedLosses:
    """Compute the loss of every line, with the model in evaluation mode."""
    was_training = model.training
    model.eval()
    nats, tokens, unknown = (np.zeros(len(data.masker)) for _ in range(3))
    for rows, batch in data.in_order():
        _, logits_MV = model(batch.to(device))
        targets_M, num_targets_B = batch.targets, batch.num_targets.numpy()
        nats_M = F.cross_entropy(logits_MV.float(), targets_M.to(device), reduction="none").double().cpu()
        line_M = np.repeat(rows, num_targets_B)
        np.add.at(nats, line_M, nats_M.numpy())
        np.add.at(unknown, line_M, (targets_M == data.masker.ids.unk).numpy())
        tokens[rows] += num_targets_B
    model.train(was_training)
    return MaskedLosses(nats, tokens, data.characters(), unknown)


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
    (directory / ENCODER_DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", "utf-8")


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
    description = json.loads((directory / ENCODER_DESCRIPTION).read_text("utf-8"))
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
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
