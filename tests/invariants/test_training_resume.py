"""Invariants R1 and F39: a killed and resumed training ends bit-identical; the same seed, the same curve."""

import random
from copy import deepcopy

import numpy as np
import pytest
import torch

from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import TrialStopped
from nlgraft.text.batches import Ragged
from nlgraft.training.loop import train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.step import Training
from nlgraft.training.train_config import LearnedParameters, Side, TrainConfig, View
from nlgraft.training.views import Encoded, Seq2SeqData
from tests.tensors import differing
from tests.unit.training.toy import Recorder, ToyData, ToyModel, dev_loss_of, make_context

TIMED = {"train/tokens_per_s"}


def dev_loss(model):
    torch.rand(3)  # an evaluation that draws numbers must not change training
    return dev_loss_of(model, ToyData(num=12, seed=9), 12)


def real_parts():
    """The real model with dropout, tied tables and the sliced projection, on the real data class."""
    rng = np.random.default_rng(2)
    streams = {
        role: Ragged.of(rng.integers(4, 30, rng.integers(1, 9)).tolist() for _ in range(60))
        for role in ("source 0", "source 1", "target")
    }
    view = View(sources=(Side(stream="source 0"), Side(stream="source 1")), is_one_source_drawn=True)
    data = Seq2SeqData(Encoded(streams), view, batch_tokens=60, seed=3)
    torch.manual_seed(1)
    config = TransformerConfig(preset="tiny", d_model=32, num_heads=2, ffn_dim=48, dropout=0.2, tying="all")
    return Seq2Seq(config, 30, 30), data


@pytest.fixture(autouse=True)
def cadence(monkeypatch):
    """Reports and checkpoints of trainings as short as these."""
    monkeypatch.setattr("nlgraft.training.loop.REPORT_EVERY_STEPS", 4)
    monkeypatch.setattr("nlgraft.training.loop.CHECKPOINT_EVERY_STEPS", 5)


def run(root, reporter=None, seed=5, is_real=False, **fields):
    settings = {
        "max_steps": 23,
        "peak_lr": 0.02,
        "warmup_steps": 4,
        "accumulation": 2,
        "eval_every_steps": 6,
        "weight_decay": 0.01,
        **fields,
    }
    learned = LearnedParameters(frozen=settings.pop("frozen", ()))
    model, data = real_parts() if is_real else (ToyModel(1, dropout=0.3), ToyData())
    evaluate = (lambda model: dev_loss_of(model, data, len(data))) if is_real else dev_loss
    context = make_context(root, reporter, seed=seed)
    objective, config = Seq2SeqObjective(0.1), TrainConfig(**settings)
    outcome = train(Training(model, objective, data, config, learned), context, evaluate=evaluate)
    curves = {
        name: [(step, value) for step, value, _ in points]
        for name, points in outcome.curves.items()
        if name not in TIMED
    }
    return (
        deepcopy(model.state_dict()),
        curves,
        (outcome.best_step, outcome.best_value, outcome.num_tokens, outcome.end_reason),
    )


def assert_same(outcome, expected):
    assert outcome[1:] == expected[1:]
    assert not differing(outcome[0], expected[0])


VARIANTS = [
    {},
    {"average_last": 3},
    {"patience": 2, "peak_lr": 0.5},
    {"precision": "bf16"},
    {"optimizer": "nesterov", "weight_decay": 0.0},
    {"frozen": ("source",), "lr_schedule": "cosine"},
    {"is_real": True, "patience": 20},
    pytest.param({"is_real": True, "precision": "bf16", "frozen": ("^encoder",)}, marks=pytest.mark.slow),
]
NAMES = ["best", "average", "patience", "bf16", "nesterov", "frozen", "real", "real-bf16"]


@pytest.mark.parametrize("fields", VARIANTS, ids=NAMES)
def test_killed_and_resumed_is_bit_identical(tmp_path, fields):
    """Killed three times, once before its first checkpoint: weights, curves, best, counters agree."""
    undisturbed = run(tmp_path / "undisturbed", **fields)
    for fail_at in (4, 8, 16):
        try:
            resumed = run(tmp_path / "killed", Recorder(fail_at=fail_at), **fields)
        except KeyboardInterrupt:
            continue
    recorder = Recorder()
    resumed = run(tmp_path / "killed", recorder, **fields)
    assert_same(resumed, undisturbed)
    assert recorder.reports[0][1] > 5, "begun anew it would end the same"


@pytest.mark.parametrize(
    "fields", [{}, {"average_last": 3, "max_steps": 12}, {"patience": 1, "peak_lr": 1e-4}]
)
def test_stopped_by_the_evaluation_before_the_first_step(tmp_path, fields):
    """It counts once: in the curves, and for the patience."""
    fields = {"is_evaluated_at_start": True, **fields}
    undisturbed = run(tmp_path / "undisturbed", **fields)
    with pytest.raises(TrialStopped):
        run(tmp_path / "stopped", Recorder(stop_at=0), **fields)
    assert_same(run(tmp_path / "stopped", **fields), undisturbed)


def test_killed_while_writing_a_checkpoint(tmp_path, monkeypatch):
    """The half-written one is not taken up; the one before it is."""
    import nlgraft.training.train_state as progress

    undisturbed = run(tmp_path / "undisturbed")
    original, count = progress.save_weights, 0

    def dies(state, path):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        original(state, path)

    monkeypatch.setattr(progress, "save_weights", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed")
    monkeypatch.setattr(progress, "save_weights", original)
    assert_same(run(tmp_path / "killed"), undisturbed)


def test_same_seed_same_curve_other_seed_other_curve(tmp_path):
    """Invariant F39: and no global generator matters or moves, Python's least of all."""
    random.seed(1)
    before = random.getstate()
    first = run(tmp_path / "one")
    assert random.getstate() == before
    torch.manual_seed(99)
    random.seed(2)
    assert_same(run(tmp_path / "two"), first)
    assert run(tmp_path / "three", seed=6)[1] != first[1]


def test_checkpoint_holds_nothing_but_safetensors_and_json(tmp_path):
    run(tmp_path, average_last=2)
    names = {path.name for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()}
    assert {name.rsplit(".", 1)[1] for name in names} == {"safetensors", "json"}
    assert {"model.safetensors", "optimizer.safetensors", "snapshot-0.safetensors", "progress.json"} <= names
