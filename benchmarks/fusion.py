"""Fusion: training steps of a model with branches from a frozen encoder against those of the plain model.

The encoder's states are either computed once and read from a file, or computed in every step.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.material import SIZE, Material, load_material, our_model
from benchmarks.measure import Rates, interleave, table
from benchmarks.training import endless, ours
from nlgraft.nn.batch import Batch
from nlgraft.nn.context_config import HuggingFaceEncoderConfig
from nlgraft.nn.frozen_states import FrozenStates, write_frozen_states
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.presets import preset
from nlgraft.text.batches import Ragged
from nlgraft.text.tokenizers import BOS, EOS
from nlgraft.training.data import Seq2SeqData
from nlgraft.training.views import Encoded, Side, View, prepare_side

BATCH_TOKENS = 2048
NUM_SENTENCES = 3000
ENCODER_LAYERS = 6
NUM_ROUNDS = 7
AIM = 1.1
CONTEXT = Side(stream="context prlm", prefix=(BOS,), suffix=(EOS,))
PLAIN, STORED, LIVE = "plain", "fused, stored states", "fused, live states"


@dataclass(frozen=True)
class Fusion:
    """What was measured.

    Attributes:
        rates: Target tokens per CPU-second.
        flops: Of a forward pass over one batch, relative to the plain model's: the share of what was added.
        states_per_s: Sentences whose states are computed in a CPU-second, once for all trials.
    """

    rates: Rates
    flops: float
    states_per_s: float


def _encoder(vocab_size: int) -> HuggingFaceEncoder:
    from transformers import AutoModel, BertConfig

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=SIZE["d_model"],
        num_hidden_layers=ENCODER_LAYERS,
        num_attention_heads=SIZE["num_heads"],
        intermediate_size=SIZE["ffn_dim"],
    )
    return HuggingFaceEncoder(AutoModel.from_config(config))


def _fused(vocab_size: int) -> Seq2Seq:
    torch.manual_seed(0)
    encoder = _encoder(vocab_size)
    config = preset("prlm", encoder=HuggingFaceEncoderConfig(checkpoint="random"), **SIZE, tying="all")
    return Seq2Seq(config, vocab_size, vocab_size, {"prlm": encoder})


def _few(material: Material) -> dict[str, Ragged]:
    return {
        role: Ragged.of(material.train.stream(role)[n].tolist() for n in range(NUM_SENTENCES))
        for role in ("source 0", "target")
    }


def _data(material: Material, states: FrozenStates | None, *, is_fused: bool) -> Seq2SeqData:
    few = _few(material)
    encoded = Encoded({**few, CONTEXT.stream: few["source 0"]})
    given = {} if states is None else {CONTEXT.stream: states}
    view = View(contexts={"prlm": CONTEXT} if is_fused else {})
    return Seq2SeqData(encoded, view, batch_tokens=BATCH_TOKENS, seed=1, states=given)


def _flops(model: Seq2Seq, batch: Batch) -> int:
    counter: Any = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model.logits(model(batch))
    return counter.get_total_flops()


def measure(material: Material) -> Fusion:
    """Measure training steps with and without fusion.

    Args:
        material: The corpus.

    Returns:
        Rates, and what the added parameters may cost.
    """
    size = material.vocab_size
    plain, stored, live = our_model(size), _fused(size), _fused(size)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "states.safetensors"
        sentences, _ = prepare_side(_few(material)["source 0"], CONTEXT)
        began_s = time.process_time()
        write_frozen_states(path, stored.contexts["prlm"], [row.tolist() for row in sentences])
        states_per_s = NUM_SENTENCES / (time.process_time() - began_s)
        data = {
            PLAIN: _data(material, None, is_fused=False),
            STORED: _data(material, FrozenStates(path), is_fused=True),
            LIVE: _data(material, None, is_fused=True),
        }
        models = {PLAIN: plain, STORED: stored, LIVE: live}
        batch = next(endless(data[STORED]))
        flops = _flops(stored, batch) / _flops(plain, batch)
        contestants = {name: ours(models[name], endless(data[name])) for name in models}
        return Fusion(interleave("target tokens", contestants, NUM_ROUNDS), flops, states_per_s)


def report() -> list[str]:
    """Write what was measured."""
    found = measure(load_material())
    slower, low, high = found.rates.ratio(PLAIN, STORED)
    live, *_ = found.rates.ratio(PLAIN, LIVE)
    return [
        f"## Fusion with a frozen encoder of {ENCODER_LAYERS} layers, {BATCH_TOKENS} tokens a batch",
        "",
        *table(found.rates, PLAIN),
        "",
        f"A step with stored states takes {slower:.2f} ({low:.2f}-{high:.2f}) times the plain one, with live "
        f"states {live:.2f} times. With the branches a step has {found.flops:.2f} times the plain model's "
        f"arithmetic, so the aim is at most {AIM * found.flops:.2f}. States are computed once, "
        f"{found.states_per_s:.0f} sentences per CPU-s.",
    ]
