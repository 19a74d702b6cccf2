"""Decoding with a language model on the target side: keeping its states against reading every prefix anew.

Edunov et al. (2019), Table 5, report 259 instead of 2,334 tokens/s for reading anew.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.decoding import BEAM, NUM_STEPS, chunks_of, ours
from benchmarks.material import SIZE, Material, load_material, our_model
from benchmarks.measure import Rates, interleave, table
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import UniLMConfig
from nlgraft.nn.contextual import ContextualEmbedding
from nlgraft.nn.language_models import UniLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.pooling import LayerStates
from nlgraft.nn.presets import preset

NUM_SENTENCES = 64
NUM_ROUNDS = 5
LM_LAYERS = 6
PLAIN, CACHED, UNCACHED = "no language model", "language model, cached", "language model, read anew"


class _Prefixes:
    """All that was said in each row."""

    def __init__(self) -> None:
        self.ids_RT: Tensor | None = None
        self.beam = 1

    def expand(self, beam: int) -> None:
        self.beam = beam
        if self.ids_RT is not None:
            self.ids_RT = self.ids_RT.repeat_interleave(beam, 0)

    def reorder(self, parent_BK: Tensor) -> None:
        assert self.ids_RT is not None
        first_B1 = self.beam * torch.arange(len(parent_BK))[:, None]
        self.ids_RT = self.ids_RT[(first_B1 + parent_BK).flatten()]

    def select(self, rows_B: Tensor) -> None:
        assert self.ids_RT is not None
        self.ids_RT = self.ids_RT.unflatten(0, (-1, self.beam))[rows_B].flatten(0, 1)


class _ReadsAnew(nn.Module):
    """A language model that keeps no states, as the released code of Edunov et al."""

    def __init__(self, model: UniLM) -> None:
        super().__init__()
        self.model = model

    def new_cache(self) -> _Prefixes:
        return _Prefixes()

    def step(self, ids_R1: Tensor, cache: _Prefixes) -> LayerStates:
        cache.ids_RT = ids_R1 if cache.ids_RT is None else torch.cat([cache.ids_RT, ids_R1], 1)
        tokens = Tokens(cache.ids_RT, torch.ones_like(cache.ids_RT, dtype=torch.bool))
        states = self.model(tokens)
        return LayerStates([layer[:, -1:] for layer in states.layers], states.output[:, -1:])


def _with_language_model(vocab_size: int, *, is_cached: bool) -> Seq2Seq:
    torch.manual_seed(0)
    sizes = {name: SIZE[name] for name in ("d_model", "num_heads", "ffn_dim")}
    encoder = UniLMConfig(vocab_size=vocab_size, num_layers=LM_LAYERS, **sizes)
    model = Seq2Seq(preset("tgt_elmo", encoder=encoder, **SIZE), vocab_size, vocab_size).eval()
    if not is_cached:
        context = cast("ContextualEmbedding", model.target_embedding).context
        context.encoder = _ReadsAnew(cast("UniLM", context.encoder))  # type: ignore[assignment]
    return model


def measure(material: Material) -> tuple[Rates, bool]:
    """Measure decoding with and without the language model's cache.

    Args:
        material: The corpus.

    Returns:
        Sentences per CPU-second, and whether both ways say the same.
    """
    chunks, size = chunks_of(material, NUM_SENTENCES), material.vocab_size
    searches = {
        PLAIN: ours(our_model(size).eval(), chunks),
        CACHED: ours(_with_language_model(size, is_cached=True), chunks),
        UNCACHED: ours(_with_language_model(size, is_cached=False), chunks),
    }
    is_same = searches[CACHED]() == searches[UNCACHED]()
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
