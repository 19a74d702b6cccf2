"""Stages of a small system: text, states of a frozen checkpoint, training on them; imported by name."""

from __future__ import annotations

import json

import torch

from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.context_config import ContextConfig
from nlgraft.nn.contextual import Context
from nlgraft.nn.frozen_states import FrozenStates, write_frozen_states
from nlgraft.nn.identity import checkpoint_identity
from nlgraft.nn.model import Seq2Seq
from nlgraft.pipeline.stage import Stage, StageContext, StageGraph
from nlgraft.text.batches import Ragged
from nlgraft.training.config import TrainConfig
from nlgraft.training.data import Seq2SeqData, dev_loss
from nlgraft.training.loop import train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.views import Encoded, Side, View, prepare_side
from tests.tiny_models import SIZES, VOCAB

HERE = "tests.unit.training.frozen_stages"
CONTEXT = Side(stream="context prlm", prefix=(4,), suffix=(5,))
STATES = "train.safetensors"
TRAIN = TrainConfig(max_steps=6, batch_tokens=60, warmup_steps=0, eval_every_steps=3)


def graph(checkpoint: str, merge: str, *, is_stored: bool, precision: str = "fp32") -> StageGraph:
    """One trial; only ``merge`` is part of the training's slice, so all merges share the states."""
    context = {"encoder": {"kind": "hugging_face", "checkpoint": checkpoint}}
    slice_ = {"context": context, "identity": checkpoint_identity(checkpoint)}
    text = Stage(name="text", run=f"{HERE}:write_text", config={"num": 30})
    states = Stage(
        name="states",
        run=f"{HERE}:write_states",
        config={**slice_, "precision": precision},
        inputs={"text": text},
    )
    inputs = {"text": text, "states": states} if is_stored else {"text": text}
    config = {**slice_, "merge": merge}
    return StageGraph(Stage(name="train", run=f"{HERE}:write_model", config=config, inputs=inputs, seed=3))


def write_text(context: StageContext) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 7, (context.config["num"],), generator=generator).tolist()
    rows = Ragged.of(torch.randint(8, VOCAB, (length,), generator=generator).tolist() for length in lengths)
    Encoded({"source 0": rows, "target": rows, CONTEXT.stream: rows}).write(context.directory / "text")


def write_states(context: StageContext) -> None:
    encoded = Encoded.read(context.inputs["text"] / "text")
    sentences, _ = prepare_side(encoded.stream(CONTEXT.stream), CONTEXT)
    reader = Context(ContextConfig.model_validate(context.config["context"]))
    path, precision = context.directory / STATES, context.config["precision"]
    write_frozen_states(path, reader, [row.tolist() for row in sentences], precision=precision)


def write_model(context: StageContext) -> None:
    contexts = {"prlm": context.config["context"]}
    fusion = {"contexts": ("prlm",), "merge": context.config["merge"]}
    torch.manual_seed(context.seed or 0)
    model = Seq2Seq(TransformerConfig(**SIZES, dropout=0.0, contexts=contexts, fusion=fusion), VOCAB, VOCAB)
    given = {}
    if "states" in context.inputs:
        given = {CONTEXT.stream: FrozenStates(context.inputs["states"] / STATES)}
    data = Seq2SeqData(
        Encoded.read(context.inputs["text"] / "text"),
        View(contexts={"prlm": CONTEXT}),
        batch_tokens=TRAIN.batch_tokens,
        seed=1,
        states=given,
    )
    outcome = train(model, Seq2SeqObjective(), data, TRAIN, context, evaluate=dev_loss(data))
    metrics = {"dev/loss": {"value": outcome.best_value, "n": len(data), "signature": "nats per token"}}
    (context.directory / "metrics.json").write_text(json.dumps(metrics))
