"""The loop: what it takes, keeps, reports, and what it refuses."""

import json
import math
from copy import deepcopy

import numpy as np
import pytest
import torch

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.stage import TrialStopped
from nlgraft.training.loop import train
from nlgraft.training.losses import Loss, Seq2SeqObjective
from nlgraft.training.step import Training, TrainingDiverged
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, ParameterGroup, TrainConfig
from nlgraft.training.weights import load_weights
from tests.tensors import differing
from tests.unit.training.toy import Recorder, ToyData, ToyModel, dev_loss, make_context

CONFIG = {
    "max_steps": 12,
    "peak_lr": 0.02,
    "warmup_steps": 4,
    "eval_every_steps": 4,
    "average_last": 1,
}


@pytest.fixture(autouse=True)
def cadence(monkeypatch):
    """Reports and checkpoints of trainings as short as these."""
    monkeypatch.setattr("nlgraft.training.loop.REPORT_EVERY_STEPS", 3)
    monkeypatch.setattr("nlgraft.training.loop.CHECKPOINT_EVERY_STEPS", 5)


def weights_of(model):
    return deepcopy(model.state_dict())


def run(
    root, model=None, data=None, objective=None, reporter=None, evaluate=None, learned=ALL_LEARNED, **fields
):
    model = model or ToyModel(1)
    context = make_context(root, reporter)
    config = TrainConfig(**{**CONFIG, **fields})
    training = Training(model, objective or Seq2SeqObjective(0.1), data or ToyData(), config, learned)
    outcome = train(training, context, evaluate=evaluate)
    return model, outcome, context


def test_it_learns_and_writes_what_it_learned(tmp_path):
    recorder = Recorder()
    model, outcome, context = run(tmp_path, reporter=recorder, evaluate=dev_loss, max_steps=60)
    curves = json.loads((context.directory / "curves.json").read_text())
    assert curves == outcome.curves
    dev = [value for _, value, _ in curves["dev/loss"]]
    assert dev[-1] < 0.7 * dev[0]
    assert [step for step, _, _ in curves["dev/loss"]] == list(range(4, 61, 4))
    assert curves["train/lr"][-1][1] == TrainConfig(**CONFIG).learning_rate(60)
    assert {"train/loss", "train/lr", "train/tokens_per_s", "train/gradient_norm"} < set(curves)
    assert all(unix_ms > 1e12 for points in curves.values() for _, _, unix_ms in points)
    assert (outcome.step, outcome.end_reason) == (60, "max_steps")
    assert not differing(load_weights(context.directory / "model.safetensors"), model)
    steps = [step for _, step, _ in recorder.reports]
    assert steps == sorted({*range(3, 61, 3), *range(4, 61, 4)})
    assert recorder.reports[0][0] == "finetune"


def test_epochs_are_so_many_batches_of_the_first_and_examples_are_counted(tmp_path):
    """37 examples in batches of 6: 7 batches an epoch, 3 epochs of them two at a time are 11 steps."""
    data, epochs = ToyData(), []
    epoch = data.epoch
    data.epoch = lambda index: epochs.append(index) or epoch(index)
    _, outcome, _ = run(
        tmp_path, data=data, max_steps=None, max_epochs=3, accumulation=2, eval_every_steps=99
    )
    assert (outcome.step, outcome.end_reason) == (11, "max_steps")
    assert outcome.num_examples == 3 * 37 + 6
    assert epochs == [0, 0, 1, 2, 3]  # the first to count its batches


def test_reported_loss_is_the_mean_over_tokens_since_the_last_report(tmp_path):
    """By hand: batches of epoch 0 under frozen weights (a learning rate too small to matter)."""
    _, outcome, _ = run(tmp_path, peak_lr=1e-12, max_steps=6, warmup_steps=0, eval_every_steps=99)
    data, model = ToyData(), ToyModel(1)
    losses = [Seq2SeqObjective(0.1)(model, data.batch(rows, 0)) for rows in data.epoch(0)[:6]]
    for point, part in zip(outcome.curves["train/loss"], (losses[:3], losses[3:6]), strict=True):
        mean = sum(loss.loss_sum.item() for loss in part) / sum(loss.num_tokens for loss in part)
        assert point[1] == pytest.approx(mean, rel=1e-6)
    assert outcome.num_tokens == sum(loss.num_tokens for loss in losses)


def test_terms_of_the_objective_become_curves(tmp_path):
    def objective(model, batch):
        loss = Seq2SeqObjective(0.1)(model, batch)
        return Loss(loss.loss_sum, loss.num_tokens, {"half": loss.loss_sum.detach() / 2})

    _, outcome, _ = run(tmp_path, objective=objective)
    pairs = zip(outcome.curves["train/loss"], outcome.curves["train/half"], strict=True)
    assert all(half[1] == pytest.approx(whole[1] / 2) for whole, half in pairs)


def test_accumulation_gives_the_gradient_of_one_batch(tmp_path):
    """Two batches of unlike sizes and lengths, accumulated, against the same rows in one batch."""
    halves, merged = ToyData(rows=3), ToyData(rows=3)
    batches = ToyData(rows=3).epoch(0)[:12]
    halves.epoch = lambda index: batches
    merged.epoch = lambda index: [
        np.concatenate(pair) for pair in zip(batches[::2], batches[1::2], strict=True)
    ]
    split, whole = ToyModel(1).double(), ToyModel(1).double()
    _, outcome, _ = run(tmp_path / "split", split, halves, accumulation=2)
    _, outcome_one, _ = run(tmp_path / "one", whole, merged)
    for name, tensor in split.state_dict().items():
        assert torch.allclose(tensor, whole.state_dict()[name], rtol=1e-12, atol=1e-14), name
    losses = [[value for _, value, _ in o.curves["train/loss"]] for o in (outcome, outcome_one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_one_step_by_hand(tmp_path):
    """The first AdamW step moves each weight by lr * g / (|g| + eps), g the clipped gradient of the mean."""
    model, data = ToyModel(1).double(), ToyData()
    before = ToyModel(1).double()
    loss = Seq2SeqObjective(0.1)(before, data.batch(data.epoch(0)[0], 0))
    (loss.loss_sum / loss.num_tokens).backward()
    norm = math.sqrt(sum((p.grad**2).sum().item() for p in before.parameters()))
    run(tmp_path, model, data, max_steps=1, clip_norm=norm / 2, epsilon=1e-3, warmup_steps=0)
    for (name, after), start in zip(model.named_parameters(), before.parameters(), strict=True):
        clipped = start.grad / 2
        expected = start - 0.02 * clipped / (clipped.abs() + 1e-3)
        assert torch.allclose(after, expected, atol=1e-7), name


def noted_weights():
    """Weights at each evaluation, of which each is worse than the last, and the evaluation."""
    at = []

    def evaluate(model):
        at.append(weights_of(model))
        return {"dev/loss": float(len(at))}

    return at, evaluate


def test_a_group_that_is_frozen_at_first_moves_only_afterwards(tmp_path):
    """Frozen for five of twelve steps: as drawn at the evaluation of step 5, moved at that of 10."""
    at, evaluate = noted_weights()
    groups = (ParameterGroup(pattern="mix", lr_multiplier=1, num_frozen_steps=5),)
    drawn = ToyModel(1).state_dict()
    run(tmp_path, ToyModel(1), learned=LearnedParameters(groups=groups), evaluate=evaluate)
    moved = [differing(weights, drawn) for weights in at[:2]]
    assert {"mix.weight", "mix.bias"} & moved[0] == set()
    assert {"mix.weight", "mix.bias"} <= moved[1]
    assert "source.weight" in moved[0]


def test_without_selection_the_last_weights_are_the_result_and_no_others_are_kept(tmp_path, monkeypatch):
    (at, evaluate), kept = noted_weights(), []
    monkeypatch.setattr(Checkpoints, "save", lambda self, step, write: kept.append((step, write)))
    model, _, _ = run(tmp_path, evaluate=evaluate)
    assert not differing(model, at[-1])
    assert [step for step, _ in kept] == [5, 10]
    kept[-1][1](tmp_path)
    assert not list(tmp_path.glob("*best*"))


def test_best_weights_are_the_result(tmp_path):
    values = iter([3.0, 1.0, 2.0])
    kept = []

    def evaluate(model):
        kept.append(weights_of(model))
        assert not model.training
        return {"dev/loss": next(values)}

    model, outcome, context = run(tmp_path, evaluate=evaluate, average_last=None)
    assert (outcome.best_step, outcome.best_value, outcome.step) == (8, 1.0, 12)
    assert not differing(model, kept[1])
    assert not differing(load_weights(context.directory / "model.safetensors"), kept[1])


@pytest.mark.parametrize(
    ("metric", "values", "steps", "best"),
    [
        ("dev/greedy_bleu", [10.0, 12.0, 12.0, 11.0, 99.0], 16, 8),  # an equal value is no new best
        ("dev/loss", [5.0, 5.5, 4.0, 4.5, 4.2], 20, 12),
    ],
)
def test_patience_ends_training(tmp_path, metric, values, steps, best):
    dev = iter(values)
    _, outcome, _ = run(
        tmp_path,
        evaluate=lambda model: {metric: next(dev)},
        max_steps=100,
        patience=2,
        best_metric=metric,
        average_last=None,
    )
    assert (outcome.step, outcome.best_step, outcome.end_reason) == (steps, best, "patience")


def test_average_of_the_last_evaluation_points_is_the_result(tmp_path):
    """Invariant F32, through the loop: evaluation points 4, 8, 12; the last two are averaged."""
    points = []

    def evaluate(model):
        points.append(weights_of(model))
        return {"dev/loss": 1.0}

    some = LearnedParameters(frozen=("source",))
    model, _, _ = run(tmp_path, evaluate=evaluate, average_last=2, learned=some)
    for name, tensor in model.state_dict().items():
        manual = (points[1][name].double() + points[2][name].double()) / 2
        assert torch.equal(tensor, manual.float()), name
    assert torch.equal(model.source.weight, ToyModel(1).source.weight)


def test_stop_is_asked_for_after_every_report_and_leaves_a_checkpoint(tmp_path):
    recorder = Recorder(stop_at=6)
    with pytest.raises(TrialStopped, match="rung 1"):
        run(tmp_path, reporter=recorder, evaluate=dev_loss)
    assert recorder.reports[-1][1] == 6
    assert make_context(tmp_path).checkpoints.newest_step() == 6


def test_evaluation_before_the_first_step(tmp_path):
    _, outcome, _ = run(tmp_path, evaluate=dev_loss, is_evaluated_at_start=True)
    assert [step for step, _, _ in outcome.curves["dev/loss"]] == [0, 4, 8, 12]
    assert outcome.curves["dev/loss"][0][1] == pytest.approx(dev_loss(ToyModel(1))["dev/loss"])


def test_weights_before_the_first_step_are_not_averaged_in(tmp_path):
    """Though fewer evaluations follow than are to be averaged."""
    results = [
        run(tmp_path / str(is_at_start), evaluate=dev_loss, average_last=4, is_evaluated_at_start=is_at_start)
        for is_at_start in (False, True)
    ]
    assert not differing(*(model for model, _, _ in results))


def test_bf16_trains_close_to_fp32(tmp_path):
    wide = run(tmp_path / "wide", max_steps=40)[1].curves["train/loss"][-1][1]
    narrow = run(tmp_path / "narrow", max_steps=40, precision="bf16")[1].curves["train/loss"][-1][1]
    assert narrow == pytest.approx(wide, rel=0.05)
    assert narrow != wide


def test_training_leaves_the_callers_random_numbers_alone(tmp_path):
    model, before = ToyModel(1, dropout=0.3), torch.get_rng_state()
    run(tmp_path, model)
    assert torch.equal(torch.get_rng_state(), before)


def nan_at(step_to_break):
    count = 0

    def objective(model, batch):
        nonlocal count
        count += 1
        loss = Seq2SeqObjective(0.1)(model, batch)
        return Loss(loss.loss_sum * (math.nan if count == step_to_break else 1.0), loss.num_tokens)

    return objective


def test_a_loss_that_is_no_number_names_the_step(tmp_path):
    with pytest.raises(TrainingDiverged, match="stage finetune: the loss is nan at step 7") as raised:
        run(tmp_path, objective=nan_at(7))
    assert isinstance(raised.value, FloatingPointError)


def test_a_gradient_that_is_no_number_names_the_step(tmp_path):
    def objective(model, batch):
        loss = Seq2SeqObjective(0.1)(model, batch)
        zero = model.norm.bias.sum() * 0
        return Loss(loss.loss_sum + torch.sqrt(zero) - torch.sqrt(zero), loss.num_tokens)

    with pytest.raises(TrainingDiverged, match="gradient's norm is nan at step 1"):
        run(tmp_path, objective=objective)


def test_a_dev_metric_that_is_no_number_names_it(tmp_path):
    with pytest.raises(TrainingDiverged, match="dev/loss is inf at step 4"):
        run(tmp_path, evaluate=lambda model: {"dev/loss": math.inf})


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(ContractError, match="need an evaluate function"):
        run(tmp_path, average_last=None)
    with pytest.raises(ContractError, match="best_metric=dev/loss is not measured; measured: dev/bleu"):
        run(tmp_path, average_last=None, evaluate=lambda model: {"dev/bleu": 1.0})
    usual = Training(ToyModel(), Seq2SeqObjective(), ToyData(), TrainConfig(**CONFIG))
    with pytest.raises(ContractError, match="no seed"):
        train(usual, make_context(tmp_path, seed=None))
    with pytest.raises(ContractError, match="2 workers but no torch process group"):
        train(usual, make_context(tmp_path, world_size=2))
    with pytest.raises(DataError, match="has no batches"):
        run(tmp_path / "empty", data=ToyData(num=0))
    with pytest.raises(DataError, match="hold no token"):
        run(tmp_path / "silent", objective=lambda model, batch: Loss(model.mix.bias.sum() * 0, 0))
