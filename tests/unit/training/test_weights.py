"""Weights on disk, carry-over between stages, averaging."""

import pytest
import torch
from torch import nn

from nlgraft.basics.errors import ContractError, StoreError
from nlgraft.training.weights import (
    average_weights,
    carry_over,
    load_model,
    load_weights,
    save_model,
    save_weights,
)
from tests.tensors import differing
from tests.unit.training.toy import ToyModel


def test_tied_tensors_are_written_once_and_come_back_under_both_names(tmp_path):
    """Invariant F38: saved and loaded, the same weights."""
    save_model(ToyModel(1), tmp_path)
    other = ToyModel(2)
    load_model(other, tmp_path)
    assert not differing(ToyModel(1), other)
    assert other.output.weight is other.target.weight
    weights = load_weights(tmp_path / "model.safetensors")
    assert weights["output.weight"] is weights["target.weight"]


def test_nothing_but_safetensors_is_read(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(StoreError, match="no readable safetensors file"):
        load_weights(tmp_path / "model.safetensors")


class Larger(ToyModel):
    def __init__(self, seed):
        super().__init__(seed)
        self.fine = nn.Linear(8, 8)


def test_carry_over_refuses_what_nobody_declared():
    with pytest.raises(ContractError, match=r"'fine\.bias' is not among the earlier weights"):
        carry_over(Larger(2), ToyModel(1).state_dict())
    with pytest.raises(ContractError, match=r"'fine\.weight' has no place in the model"):
        carry_over(ToyModel(2), Larger(1).state_dict())
    shorter = ToyModel(1).state_dict()
    shorter["mix.bias"] = torch.zeros(3)
    with pytest.raises(ContractError, match=r"'mix\.bias' is \(3,\) earlier and \(8,\) now"):
        carry_over(ToyModel(2), shorter)


def test_carry_over_resets_and_drops():
    weights = Larger(1).state_dict()
    model = ToyModel(2)
    before = model.mix.weight.clone()
    report = carry_over(model, weights, fresh=[r"^mix\."], drop=["^fine"])
    assert report.initialised == ["mix.bias", "mix.weight"]
    assert report.dropped == ["fine.bias", "fine.weight", "mix.bias", "mix.weight"]
    assert torch.equal(model.mix.weight, before)
    assert torch.equal(model.source.weight, Larger(1).source.weight)


def test_carry_over_refuses_to_tie_what_had_come_apart():
    weights = {name: tensor.clone() for name, tensor in ToyModel(1).state_dict().items()}
    weights["output.weight"] += 1
    with pytest.raises(ContractError, match="are tied now but had different weights"):
        carry_over(ToyModel(2), weights)


def test_average_is_the_mean_of_what_changed():
    """Invariant F32: manual mean; frozen tensors unchanged; integer buffers not averaged."""
    generator = torch.Generator().manual_seed(0)
    frozen = torch.rand(3, generator=generator)
    snapshots = [
        {"w": torch.rand(4, 2, generator=generator), "frozen": frozen.clone(), "steps": torch.tensor(step)}
        for step in range(5)
    ]
    average = average_weights(snapshots)
    manual = sum(snapshot["w"].double() for snapshot in snapshots) / 5
    assert torch.allclose(average["w"].double(), manual, atol=1e-7)
    assert average["w"].dtype == torch.float32
    assert torch.equal(average["frozen"], frozen)
    assert average["steps"] == 4


def test_average_of_nothing_or_of_different_models_is_an_error():
    with pytest.raises(ContractError, match="no snapshots"):
        average_weights([])
    with pytest.raises(ContractError, match="different names"):
        average_weights([{"a": torch.ones(1)}, {"b": torch.ones(1)}])


def test_views_of_one_storage_are_not_mistaken_for_tied(tmp_path):
    base = torch.arange(6.0)
    save_weights({"a": base[:3], "b": base[3:], "c": base[:3]}, tmp_path / "x.safetensors")
    weights = load_weights(tmp_path / "x.safetensors")
    assert weights["b"].tolist() == [3, 4, 5]
    assert weights["c"] is weights["a"]
