import hashlib

import pytest

from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.tracking.entries import (
    distinct_levels,
    flatten,
    metric_name,
    split_params,
    tag_value,
    upstream_trainings,
)
from nlgraft.tracking.layout import cell_metrics


@pytest.mark.parametrize(
    ("name", "fitted"),
    [
        ("dev/bleu.mean", "dev/bleu.mean"),
        ("dev/bleu (cased)", "dev/bleu _cased_"),
        ("λ", "λ"),
        ("a//b", "a/b"),
        ("/lead/", "lead"),
        ("../up", "_up"),
        ("a/../b", "b"),
        (".", "_"),
        ("", "_"),
        ("a\nb\0c", "a_b_c"),
    ],
)
def test_metric_names(name, fitted):
    assert metric_name(name) == fitted


def test_long_names_stay_different():
    first, second = metric_name("x" * 400 + "1"), metric_name("x" * 400 + "2")
    assert len(first) == len(second) == 250
    assert first != second


def test_flatten_writes_dotted_keys_and_keeps_lists_whole():
    config = {
        "train": {"betas": [0.9, 0.98], "peak_lr": 1e-4, "empty": {}},
        "name": "x",
        "none": None,
        "on": True,
    }
    assert flatten(config) == {
        "train.betas": "[0.9, 0.98]",
        "train.peak_lr": "0.0001",
        "train.empty": "{}",
        "name": "x",
        "none": "null",
        "on": "true",
    }


def test_a_parameter_that_is_too_long_becomes_an_artifact():
    """A param of more than 6000 characters is stored as artifact, its hash in the param."""
    long = "w" * 6001
    params, texts = split_params({"data/words": long, "fits": "w" * 6000})
    assert texts == {"params/data_words.txt": long}
    assert params == {"data/words": f"sha256:{hashlib.sha256(long.encode()).hexdigest()}", "fits": "w" * 6000}


def test_a_tag_that_is_too_long_says_so():
    assert tag_value("x" * 8000) == "x" * 8000
    shortened = tag_value("x" * 8001)
    assert len(shortened) == 8000
    assert shortened.endswith("the full text is among the artifacts)")


def test_levels_differ_in_their_first_ten_characters():
    """MLflow #15484: parallel coordinates cut values there."""
    assert distinct_levels(["avg", "att", "avg"]) == {"avg": "avg", "att": "att"}
    alike = ["pretrained_encoder", "pretrained_decoder"]
    assert list(distinct_levels(alike).values()) == ["1 pretrained_encoder", "2 pretrained_decoder"]
    assert distinct_levels([1, 2, None]) == {"1": "1", "2": "2", "null": "null"}


def test_all_trainings_but_the_deepest_are_set_apart():
    data = Stage(name="corpus", run="toy:corpus")
    upstream = Stage(name="upstream", run="toy:train", inputs={"data": data}, workers="train")
    finetune = Stage(name="finetune", run="toy:train", inputs={"model": upstream}, workers="train")
    scores = Stage(name="scores", run="toy:score", inputs={"model": finetune})
    assert upstream_trainings(StageGraph(scores)) == {"upstream"}
    assert upstream_trainings(StageGraph(data)) == frozenset()


@pytest.mark.parametrize(
    "value, shown",
    [(20.308871, 20.31), (-0.0234567, -0.02346), (0.0, 0.0), (123456.7, 123457.0), (3, 3.0), (1e-7, 1e-7)],
)
def test_figures_of_a_cell_have_four_digits_as_mlflow_shows_all(value, shown):
    result = {"metrics": {"test/bleu": {"mean": value, "std": None, "n": 3}}}
    assert cell_metrics(result, "test/bleu") == {"test/bleu.mean": shown, "test/bleu.n": 3.0}
