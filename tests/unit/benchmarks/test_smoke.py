"""Benchmarks that nothing else runs, at a size that measures nothing."""

import importlib

import pytest

from benchmarks import many_trials, material
from nlgraft.text.corpus_config import ConlangConfig

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["training", "decoding", "fusion", "language_model_decoding", "multi_source_decoding", "overhead"]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")
def test_a_benchmark_reports(name, monkeypatch):
    small = ConlangConfig(corpus="conlang", train=3000, dev=20, test=20)
    monkeypatch.setattr(material, "_corpus", lambda *_: ("conlang", small))
    benchmark = importlib.import_module(f"benchmarks.{name}")
    for constant in {"NUM_ROUNDS", "STEPS", "NUM_SENTENCES"} & vars(benchmark).keys():
        monkeypatch.setattr(benchmark, constant, 2)
    assert benchmark.report()


def test_many_trials_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(many_trials, "NUM_TRIALS", 3)
    assert len(many_trials.run_once(tmp_path).trials_s) == 3
