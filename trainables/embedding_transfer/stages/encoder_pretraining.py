"""The stage that pretrains a masked language model and makes an encoder-decoder of it."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.conversion.encoders import PredictionHead
from nlgraft.nn.model import Seq2Seq
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.config import MASK_TOKEN
from nlgraft.stages.run.text import open_tokenizer, read_encoded, vocab_sizes
from nlgraft.text.tokenizers import SPECIAL_PIECES
from nlgraft.training.config import TrainConfig
from nlgraft.training.loop import train
from nlgraft.training.losses import Seq2SeqObjective, segment_losses
from nlgraft.training.models import fresh_model, read_model, write_model
from nlgraft.training.weights import load_model, save_model
from trainables.embedding_transfer.cloze import Cloze, ClozeData, encoder_twice

MASKED_LM = "masked_lm"
"""Folder of the artifact with the masked language model itself."""
_HEAD = "head"
"""Folder in it with the rest of a checkpoint's prediction head."""
_STATES_ONLY = "states_only.json"
"""File in it of a model that never learned to predict from its table: a checkpoint without a head."""
_LOSS = "upstream/dev_loss"


def pretrain_encoder(context: StageContext) -> None:
    """Train a masked language model from scratch; write it, and the encoder-decoder that begins with it.

    Args:
        context: ``model``, ``train``, ``mask_rate``; inputs ``encoded`` and ``target_tokenizer``.
    """
    config = TransformerConfig(**context.config["model"])
    train_config = TrainConfig(**context.config["train"])
    train_config = train_config.model_copy(
        update={"best_metric": _LOSS, "train_only": ("^model\\.(source_|encoder|output_)",)}
    )
    size = vocab_sizes(context.inputs["encoded"])["target"]
    assert context.seed is not None
    seed = context.seed
    tied = config.model_copy(update={"tying": "all"})
    cloze = Cloze(fresh_model(tied, size, size, seed))
    data, dev = (_data(context, split, size, train_config.batch_tokens) for split in ("train", "dev"))
    num_dev = len(read_encoded(context.inputs["encoded"], "dev"))

    def evaluate(model: Cloze) -> dict[str, float]:
        return {_LOSS: segment_losses(model, dev.in_order(), num_dev, context.device).per_token}

    def save(model: Cloze, directory: Path) -> None:
        write_both(model.model.cpu(), None, config, directory, seed)

    outcome = train(
        cloze, Seq2SeqObjective.of(train_config), data, train_config, context, evaluate=evaluate, save=save
    )
    assert outcome.best_value is not None
    how = "nats per masked token, unsmoothed"
    num_parameters = outcome.num_trained_parameters
    scores = {
        _LOSS: Score("loss", outcome.best_value, num_dev, "minimize", how),
        "upstream/parameters_total": Score(
            "parameters", num_parameters, 1, "minimize", "of the masked language model"
        ),
    }
    write_metrics(context.directory, scores)


def write_both(
    masked: Seq2Seq,
    head: PredictionHead | None,
    config: TransformerConfig,
    directory: Path,
    seed: int,
    *,
    is_predicting: bool = True,
) -> None:
    """Write a masked language model and the encoder-decoder that begins with it.

    Args:
        masked: The masked language model, on the CPU.
        head: What stands between its states and its table; None: nothing.
        config: Of the encoder-decoder.
        directory: Artifact being written.
        seed: Of the cross-attention.
        is_predicting: Whether the masked language model has learned to predict at all.
    """
    inner = directory / MASKED_LM
    inner.mkdir()
    write_model(masked, inner)
    if head is not None:
        (inner / _HEAD).mkdir()
        save_model(head, inner / _HEAD)
    if not is_predicting:
        (inner / _STATES_ONLY).write_text(json.dumps({"is_predicting": False}) + "\n", "utf-8")
    size = len(masked.output_projection.weight)
    write_model(encoder_twice(masked, config, fresh_model(config, size, size, seed)), directory)


def is_predicting(directory: Path) -> bool:
    """Say whether the masked language model of an artifact has learned to predict hidden tokens.

    Args:
        directory: What ``write_both`` wrote.

    Returns:
        False for a checkpoint without a prediction head.
    """
    return not (directory / MASKED_LM / _STATES_ONLY).is_file()


def read_masked_lm(directory: Path) -> tuple[Seq2Seq, PredictionHead | None]:
    """Read the masked language model of an artifact.

    Args:
        directory: What ``write_both`` wrote.

    Returns:
        The model, and what stands between its states and its table, both on the CPU.
    """
    inner = directory / MASKED_LM
    model = read_model(inner)
    if not (inner / _HEAD).is_dir():
        return model, None
    with torch.random.fork_rng(devices=[]):
        head = PredictionHead(model.config)
    load_model(head, inner / _HEAD)
    return model, head


def _data(context: StageContext, split: str, vocab_size: int, batch_tokens: int) -> ClozeData:
    mask_id = open_tokenizer(context.inputs["target_tokenizer"]).id(MASK_TOKEN)
    assert context.seed is not None
    return ClozeData(
        read_encoded(context.inputs["encoded"], split).stream("target"),
        mask_id=mask_id,
        vocab_size=vocab_size,
        num_special=max(mask_id + 1, len(SPECIAL_PIECES)),
        rate=context.config["mask_rate"],
        batch_tokens=batch_tokens,
        seed=context.seed,
    )
