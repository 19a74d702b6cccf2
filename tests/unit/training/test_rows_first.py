"""Rows that learn alone in the first steps."""

from copy import deepcopy

import pytest
import torch

from nlgraft.basics.errors import ContractError
from nlgraft.training.loop import choose_trained, make_optimizer, train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.step import RowsFirst, Training
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, TrainConfig
from tests.tensors import differing
from tests.unit.training.toy import ToyData, ToyModel, make_context

NEW = torch.tensor([False] * 4 + [True, False] * 3 + [True])
TABLE = "target.weight"
SETTINGS = {
    "peak_lr": 0.05,
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "eval_every_steps": 50,
    "average_last": 1,
}


def run(root, num_steps, num_alone, rows=None, frozen=()):
    model = ToyModel(1, dropout=0.2)
    before = deepcopy(model.state_dict())
    config = TrainConfig(**(SETTINGS | {"max_steps": num_steps}))
    first = RowsFirst(num_alone, rows or {TABLE: NEW}) if num_alone else None
    training = Training(model, Seq2SeqObjective(0.1), ToyData(), config, LearnedParameters(frozen=frozen))
    train(training, make_context(root), rows_first=first)
    return before, model.state_dict()


def test_only_the_rows_change_and_all_of_them(tmp_path):
    """Old rows and all else are equal to the bit, under weight decay too; the tied output is the table."""
    before, after = run(tmp_path, 5, 5)
    assert differing(before, after) == {TABLE, "output.weight"}
    is_row_changed = (before[TABLE] != after[TABLE]).any(1)
    assert is_row_changed.tolist() == NEW.tolist()


def test_then_all_learn(tmp_path):
    before, after = run(tmp_path, 7, 5)
    assert differing(before, after) == before.keys()
    assert (before[TABLE] != after[TABLE]).any(1)[4:].all()


def test_a_step_by_hand():
    """With the first gradient AdamW moves each entry by the rate, after the decay of 1 - rate x decay."""
    model = torch.nn.Module()
    model.table, model.other = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    config = TrainConfig(peak_lr=0.1, weight_decay=0.5)
    choose_trained(model, ALL_LEARNED)
    optimizer = make_optimizer(model, config)
    first = RowsFirst(1, {"table": torch.tensor([True, False])})
    first.check(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    first.mask_gradients(optimizer)
    assert model.other.grad is None
    assert model.table.grad.tolist() == [[3, 3], [0, 0]]
    first.step(optimizer)
    assert torch.allclose(model.table[0], torch.full((2,), 1 * (1 - 0.1 * 0.5) - 0.1), atol=1e-6)
    assert model.table[1].tolist() == [1, 1]
    assert model.other.tolist() == [1, 1]
    assert optimizer.state[model.table]["exp_avg"][1].tolist() == [0, 0]
    assert model.other not in optimizer.state
    assert sorted(group["weight_decay"] for group in optimizer.param_groups) == [0.0, 0.5]


@pytest.mark.parametrize(
    ("rows", "fields", "settings"),
    [
        ({TABLE: NEW}, {"frozen": ("^target",)}, "but it is frozen"),
        ({"output.weight": NEW}, {}, "but it is frozen"),
        ({TABLE: NEW[1:]}, {}, "has 11 rows, the mask has 10"),
        ({TABLE: torch.zeros(11, dtype=torch.bool)}, {}, "no row is new"),
    ],
)
def test_rows_that_cannot_learn_are_refused(tmp_path, rows, fields, settings):
    with pytest.raises(ContractError, match=settings):
        run(tmp_path, 2, 1, rows=rows, **fields)
