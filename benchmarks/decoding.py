"""Decoding: sentences per CPU-second at beam 5 and equal length, ours against Hugging Face's generate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.material import Material, marian_model, our_model
from benchmarks.measure import Rates, interleave
from nlgraft.nn.batch import Tokens
from nlgraft.nn.config import GenerationConfig
from nlgraft.nn.generation import beam_search

BEAM = 5
NUM_OUTPUT_TOKENS = 17
NUM_SENTENCES = 128
BATCH_SENTENCES = 64
NUM_ROUNDS = 5
END_ID = 3


def _chunks(material: Material) -> list[Tokens]:
    stream = material.test.stream("source 0")
    lengths = np.diff(stream.offsets)[:NUM_SENTENCES]
    order = np.argsort(-lengths, kind="stable")
    rows = [[*stream.values[stream.offsets[n] : stream.offsets[n + 1]].tolist(), END_ID] for n in order]
    return [Tokens.from_lists(rows[at : at + BATCH_SENTENCES]) for at in range(0, len(rows), BATCH_SENTENCES)]


def _ours(chunks: list[Tokens], vocab_size: int) -> Callable[[], float]:
    # without an output bias nothing forbids the end: a minimum length equal to the maximum does
    model = our_model(vocab_size).eval()
    config = GenerationConfig(
        beam=BEAM,
        max_length_ratio=0.0,
        max_length_offset=NUM_OUTPUT_TOKENS,
        min_length=NUM_OUTPUT_TOKENS,
        batch_sentences=BATCH_SENTENCES,
    )

    def work() -> float:
        return float(sum(len(beam_search(model, [chunk], config=config)) for chunk in chunks))

    return work


def _marian(chunks: list[Tokens], vocab_size: int) -> Callable[[], float]:
    model: Any = marian_model(vocab_size).eval()

    def work() -> float:
        count = 0
        for chunk in chunks:
            with torch.inference_mode():
                found = model.generate(
                    input_ids=chunk.ids,
                    attention_mask=chunk.valid.long(),
                    num_beams=BEAM,
                    min_new_tokens=NUM_OUTPUT_TOKENS,
                    max_new_tokens=NUM_OUTPUT_TOKENS,
                    do_sample=False,
                )
            count += found.shape[0]
        return float(count)

    return work


def measure(material: Material) -> Rates:
    """Measure our beam search against the peer's.

    Args:
        material: The corpus.

    Returns:
        Sentences per CPU-second.
    """
    chunks = _chunks(material)
    contestants = {
        "nlgraft": _ours(chunks, material.vocab_size),
        "Hugging Face generate": _marian(chunks, material.vocab_size),
    }
    return interleave("sentences", contestants, NUM_ROUNDS)
