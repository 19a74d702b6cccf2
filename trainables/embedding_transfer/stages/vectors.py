"""The stage that learns vectors of tokens from the text of a domain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.text import read_encoded, vocab_sizes
from nlgraft.training.seeds import derive_seed
from nlgraft.vocab.methods.interface import TokenVectors
from nlgraft.vocab.methods.token_vectors import VectorOptions, learn_vectors
from trainables.embedding_transfer.arms import STREAMS
from trainables.embedding_transfer.stages.generator import transferred_sides


def learn_vectors_of_sides(context: StageContext) -> None:
    """Learn the vectors of each side's vocabulary from the training text of that side.

    Args:
        context: Options of the vectors, ``kind``, ``width`` and ``sides``; input ``encoded``.
    """
    config = dict(context.config)
    sides = transferred_sides(config.pop("sides"))
    options = VectorOptions(**config)
    encoded = read_encoded(context.inputs["encoded"], "train")
    sizes = vocab_sizes(context.inputs["encoded"])
    assert context.seed is not None
    for side in sides:
        text = encoded.stream(STREAMS[side])
        sentences = [text[index] for index in range(len(text))]
        seed = derive_seed(context.seed, "vectors", side) % 2**31
        found = learn_vectors(sentences, sizes[STREAMS[side]], options, seed)
        write_vectors(found, context.directory, side)


def write_vectors(found: TokenVectors, directory: Path, side: str) -> None:
    """Write the vectors of one side.

    Args:
        found: The vectors.
        directory: Artifact being written.
        side: ``encoder`` or ``decoder``.
    """
    arrays = {"vectors": found.vectors, "counts": found.counts, "min_count": np.array([found.min_count])}
    save_file(arrays, directory / _file_name(side))


def read_vectors(directory: Path, side: str) -> TokenVectors:
    """Read the vectors of one side.

    Args:
        directory: What the stage wrote.
        side: ``encoder`` or ``decoder``.

    Returns:
        The vectors.
    """
    arrays = load_file(directory / _file_name(side))
    return TokenVectors(arrays["vectors"], arrays["counts"], int(arrays["min_count"][0]))


def _file_name(side: str) -> str:
    return f"vectors-{side}.safetensors"
