"""Encoder-decoders between stages: freshly initialised, written into an artifact, read from one."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.contextual import ContextualEmbedding
from nlgraft.nn.embedding import TableEmbedding
from nlgraft.nn.model import Seq2Seq
from nlgraft.training.seeds import derive_seed
from nlgraft.training.weights import load_model, save_model

DESCRIPTION = "model.json"


def fresh_model(config: TransformerConfig, source_size: int, target_size: int, seed: int) -> Seq2Seq:
    """Initialise a model from a stage's seed, whatever was drawn before.

    Args:
        config: Its configuration.
        source_size: Rows of the source table.
        target_size: Rows of the target table.
        seed: Of the stage.

    Returns:
        The model, on the CPU.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initialise"))
        return Seq2Seq(config, source_size, target_size)


def write_model(model: Seq2Seq, directory: Path) -> None:
    """Write a model and what is needed to build it again."""
    save_model(model, directory)
    write_description(
        model.config, directory, _vocab_size(model.source_embedding), _vocab_size(model.target_embedding)
    )


def write_description(
    config: TransformerConfig, directory: Path, source_size: int | None = None, target_size: int | None = None
) -> None:
    """Write what a model is, without its weights; the sizes where they are known."""
    description = {
        "config": config.model_dump(mode="json"),
        "source_vocab_size": source_size,
        "target_vocab_size": target_size,
    }
    (directory / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", "utf-8")


def read_config(directory: Path) -> TransformerConfig:
    """Read the configuration of a model that was written."""
    return TransformerConfig(**json.loads((directory / DESCRIPTION).read_text("utf-8"))["config"])


def read_model(directory: Path) -> Seq2Seq:
    """Build the model that ``write_model`` wrote, on the CPU."""
    description = json.loads((directory / DESCRIPTION).read_text("utf-8"))
    config = TransformerConfig(**description["config"])
    with torch.random.fork_rng(devices=[]):
        model = Seq2Seq(config, description["source_vocab_size"], description["target_vocab_size"])
    load_model(model, directory)
    return model


def _vocab_size(embedding: TableEmbedding | ContextualEmbedding) -> int:
    if isinstance(embedding, ContextualEmbedding):
        return embedding.context.vocab_size
    return embedding.table.num_embeddings
