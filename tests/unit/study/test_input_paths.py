"""Relative paths in a study: they start at its file, once and for all processes."""

import os

import pytest

from nlgraft.study.data.design import cells
from nlgraft.study.planning.selection import search_key
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config

TEXT = """
name: own-text
system: examples.minimal_system
data:
  corpus: files
  train: {sources: [text/train.en, text/train.fr], target: text/train.de}
  dev: {sources: [text/dev.en, text/dev.fr], target: ~/dev.de}
  test: {sources: [text/test.en, text/test.fr], target: /data/test.de}
search: {space: {train.peak_lr: {type: float, low: 1e-4, high: 1e-2}}, trials: 2}
objective: {metric: dev/bleu, direction: maximize}
seeds: [1]
"""


@pytest.fixture
def place(tmp_path):
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "study.yaml").write_text(TEXT)
    return directory


def data_of(study):
    return resolve_config(study, cells(study)[0]).model_dump(mode="json")["data"]


def test_they_start_at_the_study_file_wherever_a_trial_runs(place, monkeypatch):
    monkeypatch.chdir(place.parent)
    monkeypatch.setenv("HOME", "/home/someone")
    study = Study.from_yaml("here/study.yaml")
    monkeypatch.chdir("/")  # as Ray Tune changes the directory of a trial
    data = data_of(study)
    assert data["train"]["sources"] == [str(place / "text" / f"train.{code}") for code in ("en", "fr")]
    assert data["dev"]["target"] == "/home/someone/dev.de"
    assert data["test"]["target"] == "/data/test.de"


def test_a_study_that_moves_with_its_data_is_the_same(place):
    study = Study.from_yaml(place / "study.yaml")
    moved = Study.from_yaml((place.rename(place.parent / "there")) / "study.yaml")
    assert data_of(study) != data_of(moved)
    assert study == moved
    assert study.fingerprint == moved.fingerprint
    assert search_key(study, cells(study)[0]) == search_key(moved, cells(moved)[0])
    assert "there" not in moved.to_yaml()


def test_they_start_at_the_working_directory_in_python(place, monkeypatch):
    document = {**Study.from_yaml(place / "study.yaml").to_dict()}
    monkeypatch.chdir(place)
    study = Study.from_dict(document)
    monkeypatch.chdir("/")
    assert data_of(study)["train"]["sources"] == [
        os.fspath(place / "text" / f"train.{code}") for code in ("en", "fr")
    ]
