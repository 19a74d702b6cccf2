"""Freezing, training only some, learning-rate groups."""

import pytest
import torch
from torch import nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.modes import count_parameters
from nlgraft.training.loop import choose_trained, make_optimizer, parameter_groups
from nlgraft.training.train_config import LearnedParameters, ParameterGroup, TrainConfig
from tests.unit.training.toy import VOCABULARY, ToyModel


def trained(**fields):
    return set(choose_trained(ToyModel(), LearnedParameters(**fields)))


def test_trained_sets_by_pattern():
    everything = {"source.weight", "target.weight", "mix.weight", "mix.bias", "norm.weight", "norm.bias"}
    assert trained() == everything
    assert trained(frozen=(r"^source\.", r"bias$")) == {"target.weight", "mix.weight", "norm.weight"}
    assert trained(only=(r"^mix\.",)) == {"mix.weight", "mix.bias"}
    assert trained(only=(r"^mix\.",), frozen=("bias",)) == {"mix.weight"}


def test_what_the_model_froze_stays_frozen():
    model = ToyModel()
    model.source.weight.requires_grad_(False)
    assert "source.weight" not in choose_trained(model, LearnedParameters(only=("source", "mix")))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frozen": ("fine_encoder",)}, "frozen: pattern 'fine_encoder' matches no parameter"),
        ({"only": ("adapter",)}, "only: pattern 'adapter' matches no parameter"),
        ({"frozen": (".",)}, "no parameter is left to train"),
    ],
)
def test_patterns_must_match_something_but_not_everything(fields, message):
    """Invariant F12."""
    with pytest.raises(ContractError, match=message):
        trained(**fields)


def test_groups_by_multiplier_and_decay():
    model = ToyModel()
    config = TrainConfig(weight_decay=0.01)
    learned = LearnedParameters(
        groups=(
            ParameterGroup(pattern=r"mix\.weight", lr_multiplier=10),
            ParameterGroup(pattern="mix", lr_multiplier=2),
        )
    )
    choose_trained(model, learned)
    groups = {tuple(group["names"]): group for group in parameter_groups(model, config, learned)}
    assert set(groups) == {
        ("source.weight", "target.weight"),
        ("mix.weight",),
        ("mix.bias",),
        ("norm.weight", "norm.bias"),
    }
    assert groups[("mix.weight",)]["lr_multiplier"] == 10
    assert groups[("mix.bias",)]["lr_multiplier"] == 2
    assert groups[("source.weight", "target.weight")]["weight_decay"] == 0.01
    assert groups[("norm.weight", "norm.bias")]["weight_decay"] == 0.0


def test_group_that_matches_only_frozen_parameters_is_an_error():
    model = ToyModel()
    groups = (ParameterGroup(pattern="mix", lr_multiplier=10),)
    learned = LearnedParameters(frozen=("mix",), groups=groups)
    choose_trained(model, learned)
    with pytest.raises(ContractError, match="groups: pattern 'mix'"):
        make_optimizer(model, TrainConfig(), learned)


def test_tied_parameters_count_once():
    model = ToyModel()
    choose_trained(model, LearnedParameters(frozen=("source",)))
    expected = 2 * VOCABULARY * 8 + 16 * 8 + 8 + 16
    assert count_parameters(model) == (expected, expected - VOCABULARY * 8)


def test_multipliers_of_the_model_and_of_the_config_multiply():
    model = ToyModel()
    model.lr_multipliers = lambda: {"mix.": 0.1}
    learned = LearnedParameters(groups=(ParameterGroup(pattern=r"mix\.bias", lr_multiplier=5),))
    choose_trained(model, learned)
    groups = parameter_groups(model, TrainConfig(), learned)
    rates = {name: group["lr_multiplier"] for group in groups for name in group["names"]}
    assert (rates["mix.weight"], rates["mix.bias"], rates["norm.bias"]) == (0.1, 0.5, 1.0)


def test_nesterov_by_hand(monkeypatch):
    """v = mu v + g; the weight falls by lr (g + mu v); the rate may change from step to step."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0)
    monkeypatch.setattr("nlgraft.training.loop.MOMENTUM", 0.5)
    optimizer = make_optimizer(model, TrainConfig(optimizer="nesterov"))
    for gradient, rate in ((2.0, 0.1), (-1.0, 0.2)):
        model.weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    # 1 - 0.1 (2 + 0.5 * 2) = 0.7; v = 0.5 * 2 - 1 = 0; 0.7 - 0.2 (-1 + 0) = 0.9
    assert float(model.weight.detach()) == pytest.approx(0.9, abs=1e-12)
