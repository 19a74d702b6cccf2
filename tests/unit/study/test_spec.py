"""The study as data: strict types, round trips, fingerprints, schema."""

import copy
import json
import pickle

import jsonschema
import pydantic
import pytest

from nlgraft.study.data.study import NOT_IN_FINGERPRINT
from nlgraft.study.public import Study

FULL = {
    "description": 'Which parts matter?\n\nTwo lines, no, 1e-4: "quoted" ü \N{FIRE}',
    "exclude": [{"depth": 1, "arm": "att_eg"}],
    "design": {"kind": "full"},
    "search": {
        "sampler": {"name": "random", "seed": 0},
        "trial_scheduler": {"name": "asha", "grace_steps": 2, "metric": "dev/loss"},
        "space": {
            "train.peak_lr": {"type": "float", "low": 1e-4, "high": 3e-3, "log": True},
            "model.merge": {"type": "categorical", "choices": ["sum", "gate"]},
            "model.dropout": {"type": "float", "low": 0, "high": 0.5, "when": {"model.merge": "gate"}},
        },
        "trials": 4,
    },
    "objective": {"metric": "dev/bleu", "direction": "maximize"},
    "budget": {"wall_clock": "2h30m", "trials": 100, "max_failed_fraction": 0.5},
    "published": [
        {
            "source": "T2",
            "metric": "test/bleu",
            "signature": "13a",
            "values": {"att_eg": 2, "baseline": 1.5, "without gradual": 3},
        },
    ],
    "claims": [
        {"better": "att_eg", "worse": "baseline"},
        {"better": "without gradual", "worse": "att_eg", "metric": "test/bleu", "margin": 0.5},
    ],
    "analysis": {"family": "claims", "alpha": 0.1},
    "scales": {"tiny": {"seeds": [1], "base": {"train": {"max_steps": 1}}}},
}


@pytest.fixture
def rich(good):
    return Study.from_dict(good | copy.deepcopy(FULL))


def test_a_study_survives_yaml_json_and_pickle(rich, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(rich.to_yaml(), encoding="utf-8")
    for again in (
        Study.from_yaml(path),
        Study.from_dict(json.loads(rich.model_dump_json())),
        Study.from_dict(rich.to_dict()),
        pickle.loads(pickle.dumps(rich)),
    ):
        assert again == rich
        assert again.model_dump_json() == rich.model_dump_json()  # tells 1 from 1.0 and True
        assert again.fingerprint == rich.fingerprint


def test_public_yaml_has_no_passwords(good):
    good["tracking"] = {"uri": "postgresql://me:secret@host/mlflow"}
    study = Study.from_dict(good)
    assert "secret" in study.to_yaml()
    assert "secret" not in study.to_yaml(is_public=True)


def test_a_study_cannot_be_changed(study):
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        study.name = "other"


def test_the_fingerprint_changes_with_what_is_computed_and_with_nothing_else(rich, good):
    elsewhere = {
        "name": "renamed",
        "description": "",
        "resources": {"workers": 2},
        "storage": {"path": "elsewhere"},
        "tracking": {"uri": "http://host:5000"},
        "published": [],
        "claims": [],
        "analysis": {"alpha": 0.01},
        "scales": {},
        "budget": {},
        "sequential": None,
    }
    assert set(elsewhere) == NOT_IN_FINGERPRINT
    document = good | copy.deepcopy(FULL)
    for name, value in elsewhere.items():
        assert (
            Study.from_dict(document | {"claims": [], "analysis": {}, name: value}).fingerprint
            == rich.fingerprint
        )
    changes = {
        "data": {"corpus": "conlang", "train": 11},
        "base": {"train": {"max_steps": 6}},
        "factors": {"depth": good["factors"]["depth"]},
        "components": {},
        "design": {"kind": "one_factor"},
        "search": None,
        "objective": {"metric": "dev/loss", "direction": "minimize"},
        "seeds": [0, 2],
    }
    fresh = document | {"claims": [], "published": [], "exclude": [], "analysis": {}}
    base = Study.from_dict(fresh).fingerprint
    fingerprints = {Study.from_dict(fresh | {name: value}).fingerprint for name, value in changes.items()}
    assert len(fingerprints | {base, rich.fingerprint}) == len(changes) + 2


def test_dotted_and_nested_values_are_the_same_study(good):
    good["base"] = {"train.max_steps": 5}
    dotted = Study.from_dict(good)
    good["base"] = {"train": {"max_steps": 5}}
    assert dotted == Study.from_dict(good)


def test_what_from_dict_is_given_is_not_changed(good):
    before = copy.deepcopy(good)
    Study.from_dict(good, ["train.max_steps=9", "seeds[0]=8"])
    assert good == before


def test_the_schema_accepts_what_is_valid_and_refuses_unknown_keys(rich):
    schema = Study.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document = rich.to_dict()
    assert list(validator.iter_errors(document)) == []
    document["budget"]["wall_clock"] = "2h30m"
    assert list(validator.iter_errors(document)) == []
    assert list(validator.iter_errors(document | {"lamda": 1}))
    assert schema["properties"]["seeds"]["description"].startswith("One replicate of every cell per seed")
