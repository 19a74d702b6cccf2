"""Decoding with two sources, TRICE and concatenation, against a model of one source; all with their caches.

Both sources are the same sentence: encoder and cross-attention have twice the work, the output is as long.
"""

from __future__ import annotations

import torch

from benchmarks.decoding import BEAM, NUM_STEPS, chunks_of, fixed_length
from benchmarks.material import SIZE, Material, load_material
from benchmarks.measure import Rates, interleave, table
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig

NUM_ROUNDS = 7
AIM = 0.6
FAMILIES = {
    "one source": {},
    "two sources, concatenated": {"num_sources": 2},
    "two sources, TRICE": {
        "num_sources": 2,
        "fine_encoder": {"num_layers": 1},
        "segments": "halves",
        "cross_attention": "separated",
    },
}
"""Models, and their settings."""


def measure(material: Material) -> Rates:
    """Measure sentences per CPU-second of the same number of decoder steps."""
    chunks, size = chunks_of(material), material.vocab_size
    contestants = {}
    for name, family in FAMILIES.items():
        torch.manual_seed(0)
        config = TransformerConfig(**SIZE, tying="all", **family)
        model = Seq2Seq(config, size, size).eval()

        def work(model: Seq2Seq = model, count: int = config.num_sources) -> float:
            hypotheses = [beam_search(model, [chunk] * count, config=fixed_length()) for chunk in chunks]
            return float(sum(map(len, hypotheses)))

        contestants[name] = work
    return interleave("sentences", contestants, NUM_ROUNDS)


def report() -> list[str]:
    """Write what was measured."""
    rates = measure(load_material())
    one_source, *two_sources = FAMILIES
    lines = [
        f"## Decoding with two sources, beam {BEAM}, {NUM_STEPS} decoder steps",
        "",
        *table(rates, one_source),
        "",
    ]
    for name in two_sources:
        ratio, low, high = rates.ratio(name, one_source)
        lines.append(f"- {name}: {ratio:.2f} ({low:.2f}-{high:.2f} over rounds) of one source's, aim {AIM}")
    return lines
