"""Models between stages: freshly initialised, written into an artifact, read from one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.context_config import BiLMConfig, EncoderConfig, HuggingFaceEncoderConfig, UniLMConfig
from nlgraft.nn.contextual import ContextualEmbedding, ContextualEncoder
from nlgraft.nn.embedding import TableEmbedding
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.language_models import BiLM, UniLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.modes import seeded
from nlgraft.text.files import read_json, write_json
from nlgraft.training.language_model_training import DESCRIPTION_FILE as LANGUAGE_MODEL_FILE
from nlgraft.training.language_model_training import read_language_model
from nlgraft.training.seeds import derive_seed
from nlgraft.training.weights import MODEL_FILE, carry_over, load_weights, save_weights

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
        return read_language_model(directory, config)
    if config is not None and not isinstance(config, HuggingFaceEncoderConfig):
        raise ContractError(f"{directory}: no {config.kind}; run the pretraining of the language model")
    return HuggingFaceEncoder.load(HuggingFaceEncoderConfig(checkpoint=str(directory)))


def write_model(
    model: Seq2Seq,
    directory: Path,
    checkpoints: Mapping[str, Path] | None = None,
) -> None:
    """Write a model and everything needed to rebuild it, including its contexts' architectures.

    Args:
        model: The model.
        directory: Where to write it.
        checkpoints: Directories of transformers from which contexts were loaded, by name. The weights of
            frozen contexts are linked to them, so that a file system has them once.
    """
    weights = model.state_dict()
    for name, context in model.named_contexts().items():
        if not isinstance(context.encoder, HuggingFaceEncoder):
            continue
        if context.config.is_frozen and checkpoints is not None and name in checkpoints:
            _link_checkpoint(checkpoints[name], directory / CONTEXTS / name)
            for key in _names_in(model, context.encoder):
                del weights[key]
        else:
            context.encoder.write_config(directory / CONTEXTS / name)
    save_weights(weights, directory / MODEL_FILE)
    write_description(
        model.config, directory, _vocab_size(model.source_embedding), _vocab_size(model.target_embedding)
    )


def _link_checkpoint(checkpoint: Path, directory: Path) -> None:
    directory.mkdir(parents=True)
    for path in [checkpoint / "config.json", *checkpoint.glob("*.safetensors*")]:
        try:
            (directory / path.name).hardlink_to(path)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(path, directory / path.name)


def _names_in(model: Seq2Seq, encoder: nn.Module) -> list[str]:
    """Name the weights of a model that are those of an encoder in it."""
    places = {tensor.data_ptr() for tensor in encoder.state_dict().values()}
    return [name for name, tensor in model.state_dict().items() if tensor.data_ptr() in places]


def write_description(
    config: TransformerConfig,
    directory: Path,
    source_size: int | None = None,
    target_size: int | None = None,
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
    return TransformerConfig(**read_json(directory / DESCRIPTION)["config"])


def read_model(directory: Path) -> Seq2Seq:
    """Build the model that ``write_model`` wrote, on the CPU."""
    description = read_json(directory / DESCRIPTION)
    config = TransformerConfig(**description["config"])
    encoders: dict[str, ContextualEncoder] = {}
    linked: list[HuggingFaceEncoder] = []
    with torch.random.fork_rng(devices=[]):
        for name, context in config.contexts.items():
            if not isinstance(context.encoder, HuggingFaceEncoderConfig):
                continue
            stored = directory / CONTEXTS / name
            if any(stored.glob("*.safetensors")):
                encoders[name] = encoder = HuggingFaceEncoder.load(
                    HuggingFaceEncoderConfig(checkpoint=str(stored))
                )
                linked.append(encoder)
            else:
                encoders[name] = HuggingFaceEncoder.from_config(stored)
        sizes = description["source_vocab_size"], description["target_vocab_size"]
        model = Seq2Seq(config, *sizes, encoders)
    state = model.state_dict()
    linked_weights = {key: state[key] for encoder in linked for key in _names_in(model, encoder)}
    carry_over(model, load_weights(directory / MODEL_FILE) | linked_weights)
    return model


def _vocab_size(embedding: TableEmbedding | ContextualEmbedding) -> int:
    if isinstance(embedding, ContextualEmbedding):
        return embedding.context.vocab_size
    return embedding.table.num_embeddings
