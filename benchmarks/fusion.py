"""Fusion: training steps of a model with branches from a frozen encoder against those of the plain model.

All are a study's training stage. The encoder's states are either computed once, by their stage, and read from
its artifact, or computed in every step.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.material import CONTEXT, SIZE, Material, load_material, our_config
from benchmarks.measure import Rates, interleave, table
from benchmarks.training import data_of, endless, ours, training_config, training_stage
from nlgraft.nn.batch import Batch
from nlgraft.nn.context_config import ContextConfig, HuggingFaceEncoderConfig, PoolingConfig
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.context_graph import FROZEN_STATES, FrozenStatesInputs, FrozenStatesSettings
from nlgraft.stages.run.context_stages import write_states
from nlgraft.stages.run.seq2seq_stages import start_model
from nlgraft.stages.seq2seq_graph import TRAIN, TrainSettings
from nlgraft.text.tokenizers import BOS, EOS
from nlgraft.training.train_config import Side, View

BATCH_TOKENS = 2048
ENCODER_LAYERS = 6
NUM_ROUNDS = 7
SIDE = Side(stream=CONTEXT, prefix=(BOS,), suffix=(EOS,))
PLAIN, STORED, LIVE = "plain", "fused, stored states", "fused, live states"


@dataclass(frozen=True)
class Fusion:
    """Measured rates and added arithmetic.

    Attributes:
        rates: Target tokens per CPU-second.
        flops: Of a forward pass over one batch, relative to the plain model's: the share of what was added.
        states_per_s: Sentences whose states are computed in a CPU-second, once for all trials.
    """

    rates: Rates
    flops: float
    states_per_s: float


def _write_encoder(vocab_size: int, directory: Path) -> None:
    from transformers import AutoModel, BertConfig

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=SIZE["d_model"],
        num_hidden_layers=ENCODER_LAYERS,
        num_attention_heads=SIZE["num_heads"],
        intermediate_size=SIZE["ffn_dim"],
    )
    AutoModel.from_config(config).save_pretrained(directory)


def _fused_config() -> TransformerConfig:
    contexts = {"prlm": ContextConfig(encoder=HuggingFaceEncoderConfig())}
    return TransformerConfig(contexts=contexts, fusion={"contexts": ("prlm",)}, **SIZE, tying="all")


def _stage(material: Material, *, is_fused: bool) -> Stage:
    settings = TrainSettings(
        train=training_config(BATCH_TOKENS),
        model=_fused_config() if is_fused else our_config(),
        view=View(contexts={"prlm": SIDE} if is_fused else {}),
    )
    return training_stage(material, settings)


def _write_states(material: Material, encoder: Path) -> tuple[Path, float]:
    """Run the stage of frozen states; tell its artifact and the sentences per CPU-second."""
    settings = FrozenStatesSettings(selection=PoolingConfig(kind="index", index=-2), side=SIDE)
    text = material.text.encoded
    # a stage that stands for the encoder: the artifact is handed over
    stage = FROZEN_STATES.stage("states", settings, FrozenStatesInputs(encoded=text, encoder=text))
    context = material.context(stage, inputs={"encoder": encoder})
    began_s = time.process_time()
    write_states(context)
    num_sentences = sum(len(material.split(split)) for split in settings.splits)
    return context.directory, num_sentences / (time.process_time() - began_s)


def _flops(model: Seq2Seq, batch: Batch) -> int:
    # Of oneDNN's product, which is the model's on CPUs with AVX-512, torch does not know the cost.
    products = {torch.ops.mkldnn._linear_pointwise: lambda a, b, *_, **__: 2 * a[0] * a[1] * b[0]}
    counter: Any = FlopCounterMode(display=False, custom_mapping=products)
    with counter, torch.no_grad():
        model.logits(model(batch))
    return counter.get_total_flops()


def measure(material: Material) -> Fusion:
    """Measure training steps with and without fusion, and what the added parameters may cost."""
    with tempfile.TemporaryDirectory() as directory:
        encoder = Path(directory)
        _write_encoder(material.vocab_size, encoder)
        states, states_per_s = _write_states(material, encoder)
        plain, fused = _stage(material, is_fused=False), _stage(material, is_fused=True)
        live = {"encoders/prlm": encoder}
        inputs = {PLAIN: {}, STORED: {**live, f"states/{CONTEXT}": states}, LIVE: live}
        stages = {PLAIN: plain, STORED: fused, LIVE: fused}
        batch = next(endless(data_of(material, fused, inputs[STORED])))
        contexts = {name: material.context(stages[name], inputs=inputs[name]) for name in (PLAIN, STORED)}
        models = {name: start_model(*TRAIN.read(context), context) for name, context in contexts.items()}
        flops = _flops(models[STORED], batch) / _flops(models[PLAIN], batch)
        contestants = {name: ours(material, stages[name], inputs[name]) for name in stages}
        return Fusion(interleave("target tokens", contestants, NUM_ROUNDS), flops, states_per_s)


def report() -> list[str]:
    """Write what was measured."""
    measured = measure(load_material())
    slower, low, high = measured.rates.ratio(PLAIN, STORED)
    live, *_ = measured.rates.ratio(PLAIN, LIVE)
    return [
        f"## Fusion with a frozen encoder of {ENCODER_LAYERS} layers, {BATCH_TOKENS} tokens a batch",
        "",
        *table(measured.rates, PLAIN),
        "",
        f"A step with stored states takes {slower:.2f} ({low:.2f}-{high:.2f}) times the plain one, with live "
        f"states {live:.2f} times. With the branches a step has {measured.flops:.2f} times the plain model's "
        f"arithmetic, which is the aim. States are computed once, "
        f"{measured.states_per_s:.0f} sentences per CPU-s.",
    ]
