"""A toy system and a study of it."""

import copy
from pathlib import Path

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.study.public import Study
from nlgraft.study.reading.system_import import load_system


@pytest.fixture(autouse=True)
def systems(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "systems"))
    load_system.cache_clear()


@pytest.fixture
def good():
    from toy_study import GOOD  # importable only once `systems` has run

    return copy.deepcopy(GOOD)


@pytest.fixture
def study(good):
    return Study.from_dict(good)


@pytest.fixture
def problems():
    """Problems of a document: message by path, several of one path joined."""

    def find(document, overrides=(), environ=None):
        with pytest.raises(StudyError) as caught:
            Study.from_dict(document, overrides, environ or {})
        messages = {}
        for problem in caught.value.problems:
            earlier = messages.get(problem.path)
            messages[problem.path] = f"{earlier} | {problem.message}" if earlier else problem.message
        return messages

    return find
