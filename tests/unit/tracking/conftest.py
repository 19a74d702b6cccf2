import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace

import pytest

from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.study import Objective
from nlgraft.tracking.mlflow_tracker import MlflowTracker
from tests.unit.tracking.runs import run_study


@dataclass(frozen=True)
class Cell:
    label: str
    levels: dict
    key: str


@dataclass(frozen=True)
class Trial:
    cell: Cell
    name: str
    seed: int = 1
    kind: str = "replicate"
    number: int | None = None
    params: dict = field(default_factory=dict)
    config: dict = field(
        default_factory=lambda: {
            "train": {"peak_lr": 0.001, "max_steps": 20},
            "arm": "avg",
            "data": {"corpus": "conlang", "train": 9, "dev": 8, "test": 7},
        }
    )

    @cached_property
    def graph(self):
        model = Stage(name="train", run="toy:train", config={"name": self.name})
        config = {"name": self.name}
        return StageGraph(Stage(name="scores", run="toy:score", config=config, inputs={"model": model}))

    @property
    def fingerprint(self):
        return self.graph.fingerprint


class Toy:
    """A study of two cells and two seeds, and what a driver would tell of it."""

    Trial = Trial
    Cell = Cell
    cells = (Cell("baseline", {"arm": "none"}, "c0"), Cell("arm=avg_eg", {"arm": "avg_eg"}, "c1"))
    fingerprint = "f" * 64
    study = SimpleNamespace(
        name="demo",
        variant="demo",
        overrides=[],
        description="Which arm?",
        system="trainables.toy",
        seeds=[1, 2],
        data={"corpus": "conlang", "train": 9, "dev": 8, "test": 7},
        objective=Objective(metric="dev/bleu", direction="maximize"),
        to_yaml=lambda is_public=False: f"name: demo {'' if is_public else 'with a password'}\n",
    )

    @property
    def trials(self):
        return [Trial(cell, f"{cell.key}-{seed}", seed) for cell in self.cells for seed in (1, 2)]

    def publish(self, store, trial, predictor=None):
        """Put a trial's artifacts into a store: scored texts, and a model that may be served."""
        files = {"scores": {"metrics.json": "{}", "hypotheses-test.txt": "a b\n", "model.safetensors": "x"}}
        files["train"] = {"model.safetensors": "y"}
        if predictor is not None:
            files["train"] |= {"predictor.json": json.dumps(predictor), "suffix.txt": "!"}
        for stage in trial.graph.stages:
            scratch = store.new_scratch(stage)
            for name, text in files[stage.name].items():
                (scratch / name).write_text(text)
            store.publish(stage, scratch)

    def record(self, trial, state="finished", reason="", bleu=20.0, **fields):
        curves = {
            "train/loss": [[10, 2.5, 1_000_010], [20, 1.5, 1_000_020]],
            "dev/bleu": [[20, 19.0, 1_000_020]],
        }
        values = {
            "fingerprint": trial.fingerprint,
            "config": trial.config,
            "seed": trial.seed,
            "state": state,
            "reason": reason,
            "metrics": {"test/bleu": bleu},
            "signatures": {"test/bleu": "nrefs:1|tok:13a"},
            "curves": curves,
            "started_at": 1_000.0,
            "ended_at": 1_001.0,
            "host": "here",
        }
        return TrialRecord(**(values | fields))

    def result(self, states=("finished", "finished")):
        def cell_result(cell, state):
            compared = {
                "difference": 1.5,
                "ci": [0.5, 2.5],
                "p": 0.02,
                "p_holm": 0.04,
                "smallest_detectable": None,
            }
            return {
                "label": cell.label,
                "cell": cell.levels,
                "state": state,
                "metrics": {"test/bleu": {"mean": 20.5, "std": 0.5, "n": 2, "values": [20, 21]}},
                "comparison": {} if cell is self.cells[0] else {"test/bleu": compared},
            }

        return {
            "study": "demo",
            "main_metric": "test/bleu",
            "cells": [cell_result(cell, state) for cell, state in zip(self.cells, states, strict=True)],
            "claims": [{"text": "avg_eg > none", "verdict": "supported"}],
        }


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture
def store(tmp_path):
    return ArtifactStore.open(tmp_path / "store")


@pytest.fixture
def uri(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def client(uri):
    from mlflow import MlflowClient

    return MlflowClient(uri)


@pytest.fixture
def open_tracker(uri, toy):
    """Trackers of the same study on one database; those that are still open are closed."""
    opened = []

    def open_one(fingerprint=toy.fingerprint, experiment="demo", store_id=""):
        tracker = MlflowTracker(uri, experiment, store_id=store_id)
        tracker.start_study(toy.study, fingerprint, toy.cells)
        opened.append(tracker)
        return tracker

    yield open_one
    for tracker in opened:
        tracker.close()


@pytest.fixture
def reported(open_tracker, toy, store, tmp_path):
    """The closed tracker of a study that is reported whole."""
    tracker = open_tracker()
    run_study(tracker, toy, store, tmp_path / "reports")
    assert tracker.close() == 0
    return tracker
