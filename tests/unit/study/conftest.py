"""A toy system and a study of it."""

import copy
from pathlib import Path

import pytest

from nlgraft.errors import StudyError
from nlgraft.study.spec import Study
from nlgraft.study.system import load_system

GOOD = {
    "schema_version": 1,
    "name": "toy",
    "system": "toy_system",
    "data": {"corpus": "conlang", "train": 10},
    "base": {"train": {"max_steps": 5}},
    "factors": {
        "depth": {"target": "model.num_layers", "levels": [1, 2, 3], "baseline": 2},
        "arm": {
            "levels": {
                "avg_eg": {"generator.kind": "avg"},
                "att_eg": {"generator": {"kind": "att", "kd_weight": 0.25}},
            },
            "baseline": "avg_eg",
        },
    },
    "components": {"gradual": {"without": {"train.is_gradual": False}}},
    "design": {"kind": "one_factor"},
    "objective": {"metric": "dev/bleu", "direction": "maximize"},
    "seeds": [0, 1],
}


@pytest.fixture(autouse=True)
def systems(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "systems"))
    load_system.cache_clear()


@pytest.fixture
def good():
    return copy.deepcopy(GOOD)


@pytest.fixture
def study(good):
    return Study.from_dict(good)


@pytest.fixture
def problems():
    """Problems of a document, message by path; a list where a path has several."""

    def find(document, overrides=(), environ=None):
        with pytest.raises(StudyError) as caught:
            Study.from_dict(document, overrides, environ or {})
        return {problem.path: problem.message for problem in caught.value.problems}

    return find
