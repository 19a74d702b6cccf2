"""Values that no trial reads: refused where they stand, whether the file or an override gives them."""

import pytest

from nlgraft import api
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config

DEPTH = "model.num_layers"
LR = {"train.peak_lr": {"type": "float", "low": 1e-4, "high": 1e-2}}


@pytest.mark.parametrize("value", [1, 3, 5, 999, "nonsense"])
def test_an_override_of_what_a_factor_sets_is_refused_with_the_factor(good, problems, value):
    ((path, message),) = problems(good, [f"{DEPTH}={value}"]).items()
    assert path == f"base.{DEPTH}"
    assert f"factors.depth sets {DEPTH} in each" in message


def test_what_the_message_says_to_do_instead_does_it(good, problems):
    (message,) = problems(good, [f"{DEPTH}=3"]).values()
    assert message == (
        f"no cell reads this value: factors.depth sets {DEPTH} in each (baseline: 2). Leave it out; "
        "change factors.depth.levels or .baseline, or run chosen levels: --only depth=3"
    )
    only = api.chosen_cells(Study.from_dict(good), ["depth=3"])
    assert [resolve_config(Study.from_dict(good), cell).model.num_layers for cell in only] == [2, 3]
    moved = Study.from_dict(good, ["factors.depth.baseline=3"])
    assert resolve_config(moved, api.chosen_cells(moved)[0]).model.num_layers == 3


@pytest.mark.parametrize("key, value", [("generator.kind", "att"), ("generator", "{kind: patt}")])
def test_named_levels_shadow_what_all_of_them_set(good, problems, key, value):
    (message,) = problems(good, [f"{key}={value}"]).values()
    assert "factors.arm" in message
    assert "--only arm=avg_eg" in message


def test_a_value_that_some_cell_reads_is_no_mistake(good):
    good["factors"]["arm"]["levels"]["plain"] = {"train.max_steps": 7}
    study = Study.from_dict(good, ["generator.kind=att", "train.is_gradual=true"])
    kinds = {cell.label: resolve_config(study, cell).generator.kind for cell in api.chosen_cells(study)}
    assert (kinds["baseline"], kinds["arm=plain"]) == ("avg", "att")


def test_the_file_may_repeat_the_baseline_and_not_contradict_it(good, problems):
    good["base"]["model"] = {"num_layers": 2}
    good["base"]["generator"] = {"kind": "avg"}
    Study.from_dict(good)
    good["base"]["model"] = {"num_layers": 3}
    assert list(problems(good)) == [f"base.{DEPTH}"]


def test_another_baseline_goes_with_the_value_that_repeats_it(good, problems):
    good["base"]["model"] = {"num_layers": 2}
    assert "baseline: 3" in problems(good, ["factors.depth.baseline=3"])[f"base.{DEPTH}"]
    moved = Study.from_dict(good, ["factors.depth.baseline=3", f"{DEPTH}=3"])
    assert Study.from_dict(moved.to_dict()) == moved


def test_the_data_that_a_factor_varies_are_held_to_the_same(good, problems):
    good["factors"]["size"] = {"target": "data.train", "levels": [10, 20], "baseline": 10}
    Study.from_dict(good)
    assert "factors.size sets data.train" in problems(good, ["data.train=20"])["data.train"]
    whole = {"corpus": "conlang"}
    good["factors"]["size"] = {"target": "data", "levels": [whole, {**whole, "train": 3}], "baseline": whole}
    assert "baseline: its default" in problems(good)["data.train"]


def test_a_searched_value_is_read_only_under_the_condition_of_its_domain(good, problems):
    good["search"] = {"trials": 2, "space": LR}
    good["base"]["train"]["peak_lr"] = 2e-3  # for a run without the search
    plain = Study.from_dict(good, ["search=null"])
    assert resolve_config(plain, api.chosen_cells(plain)[0]).train.peak_lr == 2e-3
    ((path, message),) = problems(good, ["train.peak_lr=1e-3"]).items()
    assert path == "base.train.peak_lr"
    assert message.startswith("no trial reads this value: search.space.train.peak_lr is searched")
    good["search"]["space"] = {"train.peak_lr": LR["train.peak_lr"] | {"when": {"generator.kind": "att"}}}
    assert Study.from_dict(good, ["train.peak_lr=1e-3"]).base["train"]["peak_lr"] == 1e-3
