"""Decoding with a language model on the target side: keeping its states against reading every prefix anew.

Edunov et al. (2019), Table 5, report 259 instead of 2,334 tokens/s for reading anew.
"""

from __future__ import annotations

import torch

from benchmarks.decoding import BEAM, NUM_STEPS, chunks_of, searched
from benchmarks.material import SIZE, Material, load_material, our_model
from benchmarks.measure import Rates, interleave, table
from nlgraft.nn.context_config import ContextConfig, PoolingConfig, UniLMConfig
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.rereading import without_language_model_cache

NUM_SENTENCES = 64
NUM_ROUNDS = 5
LM_LAYERS = 6
PLAIN, CACHED, UNCACHED = "no language model", "language model, cached", "language model, read anew"


def _with_language_model(vocab_size: int) -> Seq2Seq:
    torch.manual_seed(0)
    sizes = {name: SIZE[name] for name in ("d_model", "num_heads", "ffn_dim")}
    encoder = UniLMConfig(vocab_size=vocab_size, num_layers=LM_LAYERS, **sizes)
    context = ContextConfig(encoder=encoder, pooling=PoolingConfig(kind="scalar_mix"))
    config = TransformerConfig(contexts={"lm": context}, target_context="lm", tying="none", **SIZE)
    return Seq2Seq(config, vocab_size, vocab_size).eval()


def measure(material: Material) -> tuple[Rates, bool]:
    """Measure decoding with and without the language model's cache.

    Args:
        material: The corpus.

    Returns:
        Sentences per CPU-second, and whether both ways say the same.
    """
    chunks, size = chunks_of(material, NUM_SENTENCES), material.vocab_size
    model = _with_language_model(size)
    cached = searched(model, chunks)

    def anew() -> list[list[int]]:
        with without_language_model_cache(model):
            return cached()

    searches = {PLAIN: searched(our_model(size).eval(), chunks), CACHED: cached, UNCACHED: anew}
    is_same = cached() == anew()
    contestants = {name: (lambda work=work: float(len(work()))) for name, work in searches.items()}
    return interleave("sentences", contestants, NUM_ROUNDS), is_same


def report() -> list[str]:
    """Write what was measured."""
    rates, is_same = measure(load_material())
    ratio, low, high = rates.ratio(CACHED, UNCACHED)
    return [
        f"## Decoding with a target-side language model ({LM_LAYERS} layers), beam {BEAM}, {NUM_STEPS} steps",
        "",
        *table(rates, PLAIN),
        "",
        f"Cached is {ratio:.2f} ({low:.2f}-{high:.2f} over rounds) times as fast as read anew; both say "
        f"{'the same' if is_same else 'DIFFERENT THINGS'}.",
    ]
