"""No switch of a training is ignored (invariant F36): each one changes the weights or what is reported."""

import pytest
import torch

from nlgraft.stages.run.text_stages import training_budget
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import Corpus, write_corpus
from nlgraft.training.loop import train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.step import Training
from nlgraft.training.train_config import SmoothedTrainConfig, View
from nlgraft.training.views import Encoded, Seq2SeqData
from tests.unit.training.toy import Recorder, ToyData, ToyModel, dev_loss_of, make_context

USUAL = {
    "max_steps": 9,
    "batch_tokens": 30,
    "peak_lr": 0.02,
    "warmup_steps": 3,
    "weight_decay": 0.01,
    "eval_every_steps": 3,
    "average_last": 1,
}
OTHERWISE = {
    "max_steps": {"max_steps": 10},
    "max_epochs": {"max_steps": None, "max_epochs": 1},
    "batch_tokens": {"batch_tokens": 60},
    "batch_characters": {"batch_tokens": None, "batch_characters": 30},
    "batch_sentences": {"batch_tokens": None, "batch_sentences": 5},
    "accumulation": {"accumulation": 2},
    "peak_lr": {"peak_lr": 0.03},
    "lr_schedule": {"lr_schedule": "cosine"},
    "warmup_steps": {"warmup_steps": 4},
    "initial_lr": {"initial_lr": 0.01},
    "final_lr_ratio": {"lr_schedule": "cosine", "final_lr_ratio": 0.5},
    "optimizer": {"optimizer": "nesterov", "weight_decay": 0.0},
    "betas": {"betas": (0.8, 0.98)},
    "epsilon": {"epsilon": 1e-3},
    "weight_decay": {"weight_decay": 0.0},
    "clip_norm": {"clip_norm": 0.05},
    "label_smoothing": {"label_smoothing": 0.3},
    "smoothing_kind": {"smoothing_kind": "uniform_others"},
    "precision": {"precision": "bf16"},
    "eval_every_steps": {"eval_every_steps": 9},
    "is_evaluated_at_start": {"is_evaluated_at_start": True},
    "best_metric": {"best_metric": "dev/accuracy", "average_last": None},
    "patience": {"patience": 1, "best_metric": "dev/accuracy"},
    "average_last": {"average_last": 2},
}
BASELINES = {
    "optimizer": {"weight_decay": 0.0},
    "final_lr_ratio": {"lr_schedule": "cosine"},
    "best_metric": {"average_last": None},
    "patience": {"best_metric": "dev/accuracy"},
}


def run(root, **fields):
    """Give all that a training leaves behind: weights and metrics by step."""
    config = SmoothedTrainConfig(**{**USUAL, **fields})
    sources = ToyData().sources
    encoded = Encoded({"source 0": Ragged.of(sources), "target": Ragged.of(sources)})
    lines = ["x" * 3 * len(source) for source in sources]
    write_corpus(Corpus([lines], lines), root / "corpus" / "train")
    budget = training_budget(config, root / "corpus", "train", 1)
    data = Seq2SeqData(encoded, View(), batch_tokens=budget, seed=1)
    recorder, steps = Recorder(), []

    def evaluate(model):
        steps.append(1)
        return {**dev_loss_of(model, data, len(data)), "dev/accuracy": 1.0 / len(steps)}

    model, context = ToyModel(1), make_context(root, recorder)
    train(Training(model, Seq2SeqObjective.of(config), data, config), context, evaluate=evaluate)
    reports = [
        (step, {name: value for name, value in metrics.items() if name != "train/tokens_per_s"})
        for _, step, metrics in recorder.reports
    ]
    weights = torch.cat([tensor.flatten() for tensor in model.state_dict().values()]).tolist()
    return weights, reports


def test_every_switch_is_in_the_table():
    unseen = {"activation_checkpointing", "compile"}  # memory, time: tests/unit/training/test_sharding.py
    assert set(OTHERWISE) | unseen == set(SmoothedTrainConfig.model_fields)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The training without the switch, run once for each baseline."""
    outcomes = {}

    def of(name):
        fields = BASELINES.get(name, {})
        if str(fields) not in outcomes:
            outcomes[str(fields)] = run(tmp_path_factory.mktemp("usual"), **fields)
        return outcomes[str(fields)]

    return of


@pytest.mark.parametrize("name", OTHERWISE)
def test_switch_changes_something(tmp_path, usual, name):
    assert run(tmp_path, **OTHERWISE[name]) != usual(name)


def test_without_a_switch_nothing_changes(tmp_path, usual):
    assert run(tmp_path) == usual("max_steps")
