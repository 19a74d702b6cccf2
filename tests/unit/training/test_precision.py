"""``precision: auto``: measured once, recorded, read by every training, and part of its fingerprint."""

import importlib
import json
import pkgutil

import pytest
import torch

import nlgraft.stages
import trainables
from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import execute_stage
from nlgraft.stages.stage_kind import StageKind, TrainingSettings
from nlgraft.training import precision
from nlgraft.training.loop import train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.precision import measure_gain
from nlgraft.training.step import Training
from nlgraft.training.train_config import PRECISION_INPUT, TrainConfig
from tests.tensors import differing
from tests.unit.stages.runs import TRAIN, decisions, run
from tests.unit.stages.test_language_model import pretrained
from tests.unit.training.toy import Recorder, ToyData, ToyModel, make_context

AUTO = TrainConfig(
    max_steps=3, warmup_steps=1, peak_lr=0.05, eval_every_steps=3, average_last=1, precision="auto"
)


def times(monkeypatch, fp32_s, bf16_s, *, is_run=False):
    """Let the CPU have bf16, and steps take these times, also if they are not run: they take seconds."""
    taken = []
    monkeypatch.setattr(precision, "has_bf16", lambda device: True)

    def timed(step, is_bf16, device):
        if is_run:
            step(is_bf16)
        taken.append(is_bf16)
        return bf16_s if is_bf16 else fp32_s

    monkeypatch.setattr(precision, "_timed", timed)
    return taken


def chosen(tmp_path, monkeypatch):
    """Give a store after the stage ran, what it chose, and its metrics."""
    store = ArtifactStore.open(tmp_path / "store")
    stage = TrainingSettings(train=AUTO).further_inputs()[PRECISION_INPUT]
    execute_stage(stage, store, reporter=NullReporter())
    directory = store.fetch(stage)
    return directory, *(
        json.loads((directory / name).read_text()) for name in ("precision.json", "metrics.json")
    )


@pytest.mark.parametrize(("bf16_s", "choice"), [(0.5, "bf16"), (0.95, "fp32"), (1.2, "fp32")])
def test_bf16_is_chosen_where_it_pays(tmp_path, monkeypatch, bf16_s, choice):
    times(monkeypatch, 1.0, bf16_s)
    _, written, metrics = chosen(tmp_path, monkeypatch)
    assert written["precision"] == choice
    assert written["bf16_gain"] == pytest.approx(1 / bf16_s)
    assert metrics["precision/is_bf16"]["value"] == (choice == "bf16")
    assert metrics["precision/bf16_gain"]["value"] == pytest.approx(1 / bf16_s)


def test_a_cpu_without_bf16_is_not_measured(tmp_path, monkeypatch):
    taken = times(monkeypatch, 1.0, 0.1)
    monkeypatch.setattr(precision, "has_bf16", lambda device: False)
    _, written, _ = chosen(tmp_path, monkeypatch)
    assert (written["precision"], written["bf16_gain"], taken) == ("fp32", 0.0, [])


def test_where_bf16_is_emulated_one_round_is_enough(monkeypatch):
    taken = times(monkeypatch, 1.0, 20.0, is_run=True)
    assert measure_gain("cpu") == pytest.approx(0.05)
    assert taken == [False, True]


def test_measuring_leaves_the_process_as_it_was():
    before = torch.random.get_rng_state()
    assert measure_gain("cpu") >= 0
    assert torch.equal(torch.random.get_rng_state(), before)


def trained(root, config, inputs=None):
    """Train the toy and give its weights."""
    context = make_context(root, Recorder())
    if inputs:
        context.inputs.update(inputs)
    model = ToyModel(1)
    train(Training(model, Seq2SeqObjective(), ToyData(), config), context)
    return model.state_dict()


@pytest.mark.parametrize(("bf16_s", "choice"), [(0.5, "bf16"), (1.2, "fp32")])
def test_a_training_has_the_chosen_precision(tmp_path, monkeypatch, bf16_s, choice):
    times(monkeypatch, 1.0, bf16_s)
    directory, _, _ = chosen(tmp_path, monkeypatch)
    weights = trained(tmp_path / "auto", AUTO, {PRECISION_INPUT: directory})
    for fixed in ("fp32", "bf16"):
        fixed_weights = trained(tmp_path / fixed, AUTO.model_copy(update={"precision": fixed}))
        assert bool(differing(weights, fixed_weights)) == (fixed != choice)


def test_a_training_without_the_measurement_is_refused(tmp_path):
    with pytest.raises(ContractError, match="precision is auto, but the stage has no input 'precision'"):
        trained(tmp_path, AUTO)


def test_only_auto_has_the_stage_and_all_its_trainings_share_one():
    assert TrainingSettings(train=AUTO.model_copy(update={"precision": "bf16"})).further_inputs() == {}
    first, other = (
        TrainingSettings(train=AUTO.model_copy(update={"max_steps": steps})).further_inputs()
        for steps in (1, 2)
    )
    assert first == other
    assert first[PRECISION_INPUT].workers == "share"


def test_a_trial_runs_the_measurement_first_and_records_it(tmp_path, monkeypatch):
    times(monkeypatch, 1.0, 0.5)
    store = ArtifactStore.open(tmp_path / "store")
    graph = pretrained(train={**TRAIN, "precision": "auto"})
    record = run(store, graph)
    assert record.state == "finished", record.reason
    assert (record.metrics["precision/is_bf16"], record.metrics["precision/bf16_gain"]) == (1.0, 2.0)
    assert decisions(graph, record)["precision"] == "run"
    other = run(store, pretrained(train={**TRAIN, "precision": "auto", "peak_lr": 0.02}))
    assert decisions(graph, other)["precision"] == "hit"


def test_every_kind_of_training_is_one():
    folders = (nlgraft.stages, trainables)
    names = [m.name for each in folders for m in pkgutil.walk_packages(each.__path__, f"{each.__name__}.")]
    modules = [importlib.import_module(name) for name in names if name.endswith(("kinds", "graph"))]
    kinds = {k.run: k for m in modules for k in vars(m).values() if isinstance(k, StageKind)}
    trainings = [kind for kind in kinds.values() if "train" in kind.settings.model_fields]
    assert len(trainings) >= 6
    assert [kind.run for kind in trainings if not issubclass(kind.settings, TrainingSettings)] == []
