"""Mistakes in the search of a study."""

import copy

import pytest

from nlgraft.study.public import Study
from nlgraft.study.reading.rules import warnings
from tests.unit.study.mistakes import SEARCH, change


@pytest.mark.parametrize(
    "path, value, where, message",
    [
        # ranges
        ("space.train_lr", {"type": "float", "low": 1, "high": 0}, "space.train_lr", "no 'train_lr'"),
        (
            "space.x",
            {"type": "flot", "low": 1},
            "space.x.type",
            "'flot' is not allowed. Did you mean 'float'?",
        ),
        ("space.x", {"type": "int", "low": 1.5, "high": 2}, "space.x.low", "expected int, got 1.5"),
        ("space.x", {"type": "int", "low": 1, "hihg": 2}, "space.x.hihg", "Did you mean 'high'?"),
        # what the system makes of the ends
        (
            "space",
            {"model.dropout": {"type": "float", "low": 0, "high": 1}},
            "space.model.dropout.high",
            "expected float >= 0, < 1, got 1.0",
        ),
        (
            "space",
            {"model.merge": {"type": "categorical", "choices": ["sum", "sun"]}},
            "space.model.merge.choices[1]",
            "Did you mean 'sum'?",
        ),
        (
            "space",
            {"model.num_fine_layers": {"type": "int", "low": 0, "high": 2}},
            "space.model.num_fine_layers",
            "num_fine_layers 2 exceeds num_layers 1 (in cell 'depth=1')",
        ),
        # one path, two owners
        (
            "space",
            {"model.num_layers": {"type": "int", "low": 1, "high": 2}},
            "space.model.num_layers",
            "factors.depth",
        ),
        (
            "space",
            {"train.is_gradual": {"type": "categorical", "choices": [True]}},
            "space.train.is_gradual",
            "gradual",
        ),
        # conditions
        (
            "space",
            {"model.dropout": {"type": "float", "low": 0, "high": 0.5, "when": {"generator.kind": "patt"}}},
            "space.model.dropout.when",
            "can never hold: no cell has generator.kind = 'patt'",
        ),
        (
            "space",
            {"model.dropout": {"type": "float", "low": 0, "high": 0.5, "when": {"generator.kin": "att"}}},
            "space.model.dropout.when.generator.kin",
            "Did you mean 'generator.kind'?",
        ),
        (
            "space",
            {"model.dropout": {"type": "float", "low": 0, "high": 0.5, "when": {"model.dropout": 0.1}}},
            "space.model.dropout.when",
            "conditions form a cycle: model.dropout needs model.dropout",
        ),
        # samplers and schedulers
        ("sampler", {"name": "tpa"}, "sampler.name", "Did you mean 'tpe'?"),
        ("sampler", {"name": "grid"}, "space.train.peak_lr", "a grid needs a step here"),
        (
            "sampler",
            {"name": "random", "num_startup_trials": 4},
            "sampler.num_startup_trials",
            "random has none; leave it out, or use tpe",
        ),
        ("start", [{"train.peak_lrs": 1}], "start[0].train.peak_lrs", "Did you mean 'train.peak_lr'?"),
        ("start", [{"train.peak_lr": 7.0}], "start[0].train.peak_lr", "7.0 is not a value of"),
        ("start", [{"train.peak_lr": 1e-3}] * 9, "start", "has 9 entries for"),
        ("trials", ..., "trials", "is missing"),
        ("space", {}, "space", "at least 1 long, got a mapping with no keys"),
        (
            "trial_scheduler",
            {"name": "asha", "metric": "train/los"},
            "trial_scheduler.metric",
            "reports no metric",
        ),
        ("trial_scheduler", {"name": "asha", "metric": "test/bleu"}, "trial_scheduler.metric", "test set"),
        (
            "trial_scheduler",
            {"grace_steps": 5, "max_steps": 5},
            "trial_scheduler.max_steps",
            "nothing would stop",
        ),
    ],
)
def test_bad_searches_are_refused_with_path_and_remedy(good, problems, path, value, where, message):
    good["search"] = change(copy.deepcopy(SEARCH), path, value)
    messages = problems(good)
    assert f"search.{where}" in messages, messages
    assert message in messages[f"search.{where}"]
    assert len(messages) <= 2, "one mistake must not drag others along"


def test_a_grid_has_no_more_trials_than_points(good, problems):
    space = {
        "model.merge": {"type": "categorical", "choices": ["sum", "gate"]},
        "model.dropout": {"type": "float", "low": 0.0, "high": 0.3, "step": 0.1},
    }
    good["search"] = {"trials": 9, "sampler": {"name": "grid"}, "space": space}
    assert problems(good)["search.trials"] == "the grid has 8 points; at most 8 trials differ"
    good["search"]["trials"] = 6
    assert "search.trials: 6 trials visit a part of the grid's 8 points" in warnings(Study.from_dict(good))


def test_a_search_that_ends_before_tpe_models_anything_is_warned_of(good):
    good["search"] = SEARCH | {"trials": 10}
    warned = "search.sampler: tpe draws its first 10 trials at random, and a cell has 10"
    assert any(warned in warning for warning in warnings(Study.from_dict(good)))
    for changed in ({"trials": 11}, {"sampler": {"num_startup_trials": 4}}, {"sampler": {"name": "random"}}):
        good["search"] = SEARCH | {"trials": 10} | changed
        assert not any("search.sampler" in warning for warning in warnings(Study.from_dict(good)))


def test_trials_cannot_be_stopped_by_what_is_measured_after_training(problems):
    """A shipped system's training reports its dev loss alone: with BLEU nothing was ever stopped."""
    messages = problems(NOT_TRACKED)
    assert "dev/bleu" in messages["search.trial_scheduler.metric"]
    assert "reported: dev/loss" in messages["search.trial_scheduler.metric"]
    NOT_TRACKED["search"]["trial_scheduler"]["metric"] = "train_s"
    assert "'train_s'" in problems(NOT_TRACKED)["search.trial_scheduler.metric"]
    NOT_TRACKED["search"]["trial_scheduler"]["metric"] = "dev/loss"
    assert "search.trial_scheduler.metric" not in problems({**NOT_TRACKED, "seeds": []})


NOT_TRACKED = {
    "name": "stopping",
    "system": "trainables.lm_augmentation",
    "objective": {"metric": "dev/bleu", "direction": "maximize"},
    "seeds": [1],
    "search": {
        "trials": 3,
        "trial_scheduler": {"name": "asha"},
        "space": {"train.peak_lr": {"type": "float", "low": 1e-4, "high": 1e-3}},
    },
}
