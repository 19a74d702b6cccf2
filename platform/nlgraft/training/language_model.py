"""Pretraining of our own language models: text, objective, perplexity, and what a stage does.

Shape letters: B sentences, T tokens.

Source: Edunov et al. (2019), section 3.2. Differs: AdamW and its schedules, not Nesterov's gradient.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError

from nlgraft.errors import ContractError, StoreError
from nlgraft.evaluation.inputs import pack
from nlgraft.evaluation.scores import Evaluation, score_statistics
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import BiLMConfig, UniLMConfig
from nlgraft.nn.language_models import BiLM, UniLM
from nlgraft.pipeline.stage import StageContext
from nlgraft.text.batches import Ragged, TokenBatches
from nlgraft.text.tokenizers import EOS
from nlgraft.training.config import TrainConfig
from nlgraft.training.cross_entropy import SmoothingKind, projected_cross_entropy
from nlgraft.training.loop import TrainOutcome, train
from nlgraft.training.losses import Loss, SegmentLosses
from nlgraft.training.seeds import derive_seed
from nlgraft.training.views import IntArray, Side, prepare_side
from nlgraft.training.weights import load_model, save_model

LanguageModel = UniLM | BiLM
LanguageModelConfig = UniLMConfig | BiLMConfig

DESCRIPTION_FILE = "language_model.json"
_LOG = logging.getLogger(__name__)
_CONFIGS: TypeAdapter[LanguageModelConfig] = TypeAdapter(LanguageModelConfig)
_DROPOUTS = {"dropout", "attention_dropout", "activation_dropout"}


@dataclass(frozen=True)
class TextBatch:
    """Sentences to learn from.

    Attributes:
        tokens: The end token at both ends of each sentence, [B, T].
    """

    tokens: Tokens

    def to(self, device: torch.device | str) -> TextBatch:
        """Move to a device.

        Args:
            device: Where to.

        Returns:
            The same batch there.
        """
        return TextBatch(self.tokens.to(device))


class TextData:
    """Monolingual text as batches; the end token stands at both ends of every sentence.

    Attributes:
        num_cut: How many sentences were longer than ``max_tokens``.
    """

    def __init__(
        self, sentences: Ragged, *, batch_tokens: int, seed: int = 0, max_tokens: int | None = None
    ) -> None:
        """Set up the batches of a text.

        Args:
            sentences: Bare ids of each sentence.
            batch_tokens: Most padded positions of a batch.
            seed: Of the batches.
            max_tokens: Longest sentence before the end tokens are put around it; longer ones are cut.
        """
        side = Side(stream="source 0", prefix=(EOS,), max_tokens=max_tokens)
        self._sentences, self.num_cut = prepare_side(sentences, side)
        self._batches = TokenBatches(self._sentences.lengths, batch_tokens, seed)
        if self.num_cut:
            _LOG.warning("%d of %d sentences were cut", self.num_cut, len(sentences))

    def __len__(self) -> int:
        return len(self._sentences)

    def epoch(self, index: int) -> list[IntArray]:
        """Give the sentences of each global batch of an epoch, in training order.

        Args:
            index: Number of the epoch, from 0.

        Returns:
            Sentence numbers of every batch.
        """
        return self._batches.epoch(index)

    def batch(self, rows: IntArray, epoch: int) -> TextBatch:
        """Make the batch of some sentences.

        Args:
            rows: Sentence numbers [B].
            epoch: For which epoch; nothing is drawn here, so all are alike.

        Returns:
            The batch, on the CPU.
        """
        del epoch
        return TextBatch(pack(self._sentences, rows))

    def in_order(self) -> Iterator[tuple[IntArray, TextBatch]]:
        """Go through all sentences once, always the same.

        Returns:
            Sentence numbers and batch, longest first.
        """
        return ((rows, self.batch(rows, 0)) for rows in self._batches.in_order())


@dataclass(frozen=True)
class LanguageModelObjective:
    """Cross-entropy of every token given those before it (one tower) or all others (two towers).

    Attributes:
        smoothing: Probability mass taken from the true token; the paper's models have none.
        kind: Who gets it.
    """

    smoothing: float = 0.0
    kind: SmoothingKind = "uniform_all"

    @classmethod
    def of(cls, config: TrainConfig) -> LanguageModelObjective:
        """Make the objective that a training's config asks for.

        Args:
            config: ``label_smoothing`` and ``smoothing_kind``.

        Returns:
            The objective.
        """
        return cls(config.label_smoothing, config.smoothing_kind)

    def __call__(self, model: LanguageModel, batch: TextBatch) -> Loss:
        """Compute the summed loss of a batch and its number of predicted tokens."""
        found = model.predictions(batch.tokens)
        table_VD = model.embedding.table.weight
        loss = projected_cross_entropy(found.states, table_VD, None, found.tokens, self.smoothing, self.kind)
        return Loss(loss, len(found.tokens))


@torch.no_grad()
def text_losses(model: LanguageModel, data: TextData, device: torch.device | str = "cpu") -> SegmentLosses:
    """Compute the negative log-likelihood of every sentence; the model is put into eval mode meanwhile.

    Args:
        model: The language model.
        data: Text.
        device: Where the model is.

    Returns:
        Nats and predicted tokens of each sentence.
    """
    was_training = model.training
    model.eval()
    statistics = np.zeros((len(data), 2))
    count = 0
    for rows, batch in data.in_order():
        found = model.predictions(batch.to(device).tokens)
        nats = F.cross_entropy(model.logits(found.states).float(), found.tokens, reduction="none")
        owners = rows[found.rows.cpu().numpy()]
        np.add.at(statistics[:, 0], owners, nats.double().cpu().numpy())
        np.add.at(statistics[:, 1], owners, 1)
        count += 1
    model.train(was_training)
    return SegmentLosses(statistics, count)


def evaluate_language_model(
    model: LanguageModel, data: TextData, device: torch.device | str = "cpu"
) -> Evaluation:
    """Measure a language model on a text.

    Args:
        model: The language model.
        data: Text.
        device: Where the model is.

    Returns:
        ``loss`` (nats per token) and ``perplexity``, with statistics [N, 2]. A two-tower model sees all other
        tokens, so its perplexity compares with that of its like only; the signature says which it is.
    """
    rows = text_losses(model, data, device).statistics
    seen = "all-others" if isinstance(model, BiLM) else "those-before"
    names = ("loss", "perplexity")
    scores = {name: score_statistics(name, rows, f"{name}|given:{seen}|tok:model") for name in names}
    return Evaluation(scores, dict.fromkeys(names, rows))


def dev_perplexity(data: TextData, device: torch.device | str = "cpu") -> Callable[[Any], dict[str, float]]:
    """Make the function that measures a text, for ``train(evaluate=...)``.

    Args:
        data: The dev split.
        device: Where the model is.

    Returns:
        A function from a model to ``{"dev/loss": nats per token, "dev/perplexity": its exponential}``.
    """

    def evaluate(model: Any) -> dict[str, float]:
        scores = evaluate_language_model(model, data, device).scores
        return {f"dev/{name}": score.value for name, score in scores.items()}

    return evaluate


def pretrain_language_model(
    encoder: LanguageModelConfig, text: TextData, dev: TextData, config: TrainConfig, context: StageContext
) -> TrainOutcome:
    """What a pretraining stage does: train a fresh language model and write it into the artifact.

    Args:
        encoder: Which model.
        text: What it learns from.
        dev: What it is measured on: ``dev/loss`` and ``dev/perplexity``.
        config: How long and how fast; the paper has no label smoothing.
        context: Of the stage, which has a seed.

    Returns:
        What came of it.

    Raises:
        ContractError: The stage has no seed.
    """
    if context.seed is None:
        raise ContractError(f"stage {context.stage.name} trains but has no seed; give its Stage one")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(context.seed, "initialise"))
        model = _build(encoder)
    return train(
        model,
        LanguageModelObjective.of(config),
        text,
        config,
        context,
        evaluate=dev_perplexity(dev, context.device),
        save=write_language_model,
    )


def _build(encoder: LanguageModelConfig) -> LanguageModel:
    return BiLM(encoder) if isinstance(encoder, BiLMConfig) else UniLM(encoder)


def write_language_model(model: LanguageModel, directory: Path) -> None:
    """Write a language model and what is needed to build it again.

    Args:
        model: The model.
        directory: Artifact being written.
    """
    save_model(model, directory)
    text = model.config.model_dump_json(indent=1)
    (directory / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")


def read_language_model(directory: Path, encoder: LanguageModelConfig | None = None) -> LanguageModel:
    """Build the model that ``write_language_model`` wrote: the encoder of a context.

    Args:
        directory: The artifact.
        encoder: What a study says of the model: only its dropouts may differ from those of pretraining.

    Returns:
        The model, on the CPU, for ``Seq2Seq(..., encoders={name: model})``.

    Raises:
        StoreError: The artifact holds no language model.
        ContractError: It is another model than the one asked for.
    """
    path = directory / DESCRIPTION_FILE
    try:
        written = _CONFIGS.validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise StoreError(f"{path}: no language model ({error}): run its pretraining stage again") from error
    if encoder is not None:
        asked, there = (json.loads(one.model_dump_json()) for one in (encoder, written))
        differing = [
            f"{name} is {there.get(name)}, not {asked.get(name)}"
            for name in sorted({*asked, *there} - _DROPOUTS)
            if asked.get(name) != there.get(name)
        ]
        if differing:
            raise ContractError(f"{directory}: another language model than asked for: {'; '.join(differing)}")
    with torch.random.fork_rng(devices=[]):
        model = _build(encoder or written)
    load_model(model, directory)
    return model.eval()
