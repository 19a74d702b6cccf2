"""Models between stages: freshly initialised, written into an artifact, read from one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch

from nlgraft.basics.errors import ContractError
from nlgraft.nn.context_config import BiLMConfig, EncoderConfig, HuggingFaceEncoderConfig, UniLMConfig
from nlgraft.nn.contextual import ContextualEmbedding, ContextualEncoder
from nlgraft.nn.embedding import TableEmbedding
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.language_models import BiLM, UniLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.modes import seeded
from nlgraft.text.files import write_json
from nlgraft.training.language_model_training import DESCRIPTION_FILE as LANGUAGE_MODEL_FILE
from nlgraft.training.language_model_training import read_language_model
from nlgraft.training.seeds import derive_seed
from nlgraft.training.weights import load_model, save_model

DESCRIPTION = "model.json"
CONTEXTS = "contexts"
"""Folder of a model's artifact with the architectures of transformers' models in it, by context."""


def fresh_model(
    config: TransformerConfig,
    source_size: int,
    target_size: int,
    seed: int,
    encoders: Mapping[str, ContextualEncoder] | None = None,
) -> Seq2Seq:
    """Initialise a model from a stage's seed alone.

    Args:
        config: Its configuration.
        source_size: Rows of the source table.
        target_size: Rows of the target table.
        seed: Seed of the stage.
        encoders: Pretrained encoders of contexts, by the context's name.

    Returns:
        The model, on the CPU.
    """
    with seeded(derive_seed(seed, "initialise")):
        return Seq2Seq(_with_vocabularies(config, encoders or {}), source_size, target_size, encoders)


def _with_vocabularies(
    config: TransformerConfig, encoders: Mapping[str, ContextualEncoder]
) -> TransformerConfig:
    """Fill in the vocabularies of our own language models, from which a trained model is built again."""
    contexts = dict(config.contexts)
    for name, encoder in encoders.items():
        if name in contexts and isinstance(encoder, UniLM | BiLM):
            contexts[name] = contexts[name].model_copy(update={"encoder": encoder.config})
    return config.model_copy(update={"contexts": contexts})


def read_encoder(directory: Path, config: EncoderConfig | None = None) -> ContextualEncoder:
    """Read a pretrained encoder, one of our language models or of transformers', from an artifact.

    Raises:
        ContractError: It is not the encoder that ``config`` describes.
    """
    if (directory / LANGUAGE_MODEL_FILE).is_file():
        if config is not None and not isinstance(config, UniLMConfig | BiLMConfig):
            raise ContractError(f"{directory}: a language model of ours, where {config.kind} is expected")
        return cast("ContextualEncoder", read_language_model(directory, config))
    if config is not None and not isinstance(config, HuggingFaceEncoderConfig):
        raise ContractError(f"{directory}: no {config.kind}; run the pretraining of the language model")
    # A checkpoint does not say how it is to be used.
    is_causal = config is not None and config.is_causal
    return HuggingFaceEncoder.load(HuggingFaceEncoderConfig(checkpoint=str(directory), is_causal=is_causal))


def write_model(model: Seq2Seq, directory: Path) -> None:
    """Write a model and everything needed to rebuild it, including its contexts' architectures."""
    save_model(model, directory)
    for name, context in model.named_contexts().items():
        if isinstance(context.encoder, HuggingFaceEncoder):
            context.encoder.write_config(directory / CONTEXTS / name)
    write_description(
        model.config, directory, _vocab_size(model.source_embedding), _vocab_size(model.target_embedding)
    )


def write_description(
    config: TransformerConfig, directory: Path, source_size: int | None = None, target_size: int | None = None
) -> None:
    """Write the description of a model without its weights; vocabulary sizes if they are known."""
    description = {
        "config": config.model_dump(mode="json"),
        "source_vocab_size": source_size,
        "target_vocab_size": target_size,
    }
    write_json(directory / DESCRIPTION, description)


def read_config(directory: Path) -> TransformerConfig:
    """Read the configuration of a model that was written."""
    return TransformerConfig(**json.loads((directory / DESCRIPTION).read_text("utf-8"))["config"])


def read_model(directory: Path) -> Seq2Seq:
    """Build the model that ``write_model`` wrote, on the CPU."""
    description = json.loads((directory / DESCRIPTION).read_text("utf-8"))
    config = TransformerConfig(**description["config"])
    with torch.random.fork_rng(devices=[]):
        encoders = {
            name: HuggingFaceEncoder.from_config(
                directory / CONTEXTS / name, is_causal=context.encoder.is_causal
            )
            for name, context in config.contexts.items()
            if isinstance(context.encoder, HuggingFaceEncoderConfig)
        }
        sizes = description["source_vocab_size"], description["target_vocab_size"]
        model = Seq2Seq(config, *sizes, encoders)
    load_model(model, directory)
    return model


def _vocab_size(embedding: TableEmbedding | ContextualEmbedding) -> int:
    if isinstance(embedding, ContextualEmbedding):
        return embedding.context.vocab_size
    return embedding.table.num_embeddings
