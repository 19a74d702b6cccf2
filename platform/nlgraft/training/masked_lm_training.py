"""Objective, losses and files of masked language models, and what is built on them: BERT2BERT, classifiers.

Shape letters: V vocabulary, M positions whose token is predicted, B lines, T positions of a line with begin
and end, N lines of a split, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.classification import evaluate_probabilities
from nlgraft.evaluation.scores import Evaluation
from nlgraft.evaluation.shares import SHARE
from nlgraft.evaluation.sufficient import Statistics
from nlgraft.nn.batch import Movable, Tokens
from nlgraft.nn.conversion.encoders import PredictionHead
from nlgraft.nn.masked_lm_models import (
    NOT_PREDICTED,
    Classifier,
    EncoderMaskedLM,
    MaskedBatch,
    MaskedLM,
    TransformersMaskedLM,
    load_checkpoint,
)
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import ClassifierConfig, TransformerConfig
from nlgraft.nn.modes import evaluating, seeded
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.text.files import read_json, write_json
from nlgraft.training.losses import Predictions, TokenObjective, segment_losses
from nlgraft.training.masked_text import MaskedScoringData, MaskingIds
from nlgraft.training.seeds import derive_seed
from nlgraft.training.views import IntArray, LineData, surrounded
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


# Sequence classification: labelled lines as batches, objective, evaluation, and models on disk.


DESCRIPTION_FILE = "classifier.json"
BODY = "body"
"""Folder of a classifier's artifact with its body, if that was trained."""


@dataclass(frozen=True)
class LabelledBatch(Movable):
    """Lines and their classes.

    Attributes:
        tokens: Model input, begin and end included, [B, T].
        classes: Class of each line, int64 [B].
    """

    tokens: Tokens
    classes: Tensor


class LabelledData(LineData[LabelledBatch]):
    """Labelled lines as batches.

    Args:
        lines: Bare ids of each line.
        classes_N: Class of each line.
        ids: Special tokens of the vocabulary.
        batch_tokens: Largest number of padded positions of a batch; or given batches.
        seed: Seed of the batches.
    """

    def __init__(
        self,
        lines: Ragged,
        classes_N: IntArray,
        ids: MaskingIds,
        *,
        batch_tokens: int | LengthBatches,
        seed: int = 0,
    ) -> None:
        self.classes = classes_N
        super().__init__(surrounded(lines, ids.begin, ids.end), batch_tokens, seed)
        self._pad = ids.pad

    def batch(self, rows: IntArray, epoch: int = 0) -> LabelledBatch:
        """Pack some lines, on the CPU; all epochs are alike."""
        lines = self._lines.make(rows)
        tokens = Tokens.from_lists([line.tolist() for line in lines], self._pad)
        return LabelledBatch(tokens, torch.from_numpy(self.classes[rows]))


def index_labels(
    labels: Sequence[str],
    class_names: Sequence[str],
    split: str,
) -> IntArray:
    """Map labels to classes [N], their positions in ``class_names``.

    Raises:
        DataError: A label does not occur in the training text.
    """
    classes = {label: index for index, label in enumerate(class_names)}
    if unknown := sorted(set(labels) - set(class_names)):
        listed = ", ".join(repr(label) for label in unknown[:3])
        raise DataError(f"{split} has labels that train lacks: {listed}; train has {len(class_names)} labels")
    return np.array([classes[label] for label in labels], dtype=np.int64)


def _predict(model: Classifier, batch: LabelledBatch) -> Predictions:
    return Predictions(model(batch.tokens), batch.classes, torch.arange(len(batch.classes)))


classification_objective = TokenObjective(_predict)
"""Cross-entropy of the class of each line; the loss is averaged over lines, not tokens."""


def class_probabilities(
    model: Classifier,
    data: LabelledData,
    num_classes: int,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """Compute the probability of each class of every line, [N, C], with the model in evaluation mode."""
    probabilities_NC, share = np.zeros((len(data), num_classes)), SHARE.get()
    with evaluating(model):
        for rows, batch in share.of(data.in_order()):
            logits_BC = model(batch.to(device).tokens).double()
            probabilities_NC[rows] = logits_BC.softmax(-1).cpu().numpy()
    return np.sum(share.gather(probabilities_NC), axis=0)


def evaluate_classifier(
    model: Classifier,
    data: LabelledData,
    num_classes: int,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """Measure a classifier on a split; see ``evaluate_probabilities``."""
    return evaluate_probabilities(class_probabilities(model, data, num_classes, device), data.classes)


def fresh_classifier(
    body: MaskedLM,
    num_classes: int,
    config: ClassifierConfig,
    seed: int,
) -> Classifier:
    """Put a head on a body, initialised from a stage's seed alone."""
    with seeded(derive_seed(seed, "initialise")):
        return Classifier(body, num_classes, config)


def write_classifier(
    model: Classifier,
    labels: Sequence[str],
    directory: Path,
) -> None:
    """Write a classifier's head into an artifact, and its body if that was trained."""
    save_model(model.head, directory)
    if model.config.is_body_trained:
        (directory / BODY).mkdir()
        write_masked_lm(model.body, directory / BODY)
    description = {"config": model.config.model_dump(mode="json"), "labels": list(labels)}
    write_json(directory / DESCRIPTION_FILE, description)


def read_classifier(directory: Path, body: Path) -> tuple[Classifier, list[str]]:
    """Read a classifier and its labels, on the CPU; a frozen body is read from its own artifact."""
    description = read_json(directory / DESCRIPTION_FILE)
    config = ClassifierConfig(**description["config"])
    trained = read_body(directory / BODY if config.is_body_trained else body)
    model = fresh_classifier(trained, len(description["labels"]), config, 0)
    load_model(model.head, directory)
    return model.eval(), description["labels"]


def read_body(directory: Path) -> MaskedLM:
    """Read a masked language model; a released encoder may lack the head that predicts tokens."""
    if (directory / ENCODER_DESCRIPTION).is_file():
        return read_masked_lm(directory)
    return load_checkpoint(str(directory), None, 0)[0]
