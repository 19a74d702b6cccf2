"""Tracking against a real MLflow server, through a proxy that can fail in every way a network can."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial, trial_record
from nlgraft.study.data.design import cells
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system_import import load_system
from nlgraft.tracking.mlflow_tracker import MlflowTracker
from tests.processes import patient
from tests.proxies import listening
from tests.servers import mlflow_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    with mlflow_server(f"sqlite:///{directory}/server.db", directory) as address:
        yield address


@pytest.fixture
def proxy(server):
    with listening(server.removeprefix("http://")) as proxy:
        yield proxy


class Told:
    """A toy study that has really run, and telling MLflow of it."""

    def __init__(self, document, name):
        self.study = Study.from_dict(document | {"name": name, "description": "Does gain help?"})
        self.cells = cells(self.study)
        self.store = ArtifactStore.open(self.study.storage.path)
        system = load_system(self.study.system)
        self.ended = []
        for cell in self.cells:
            config = resolve_config(self.study, cell)
            for seed in self.study.seeds:
                graph = system.stage_graph(config, seed=seed, splits=("dev", "test"))
                trial = SweepTrial(cell=cell, seed=seed, config=config.model_dump(mode="json"), graph=graph)
                run_trial(
                    graph, self.store, reporter=NullReporter(), config=dict(trial.config), is_waiting=True
                )
                self.ended.append((trial, trial_record(self.store, trial.fingerprint)))

    def start(self, uri):
        tracker = MlflowTracker(uri, self.study.name)
        tracker.start_study(self.study, self.study.fingerprint, self.cells)
        return tracker

    def result(self):
        return {
            "main_metric": "test/score",
            "cells": [
                {
                    "label": cell.label,
                    "cell": dict(cell.levels),
                    "state": "finished",
                    "metrics": {"test/score": {"mean": 1.0, "std": 0.1, "n": 2}},
                }
                for cell in self.cells
            ],
        }

    def run(self, uri, pause_s=0.0):
        tracker = self.start(uri)
        for trial, record in self.ended:
            tracker.trial_started(trial)
            for step in range(1, 4):
                tracker.trial_metrics(trial, step, {"train/loss": 1 / step}, step, "training")
            time.sleep(pause_s)
            tracker.trial_ended(trial, record, self.store)
        tracker.finish_study(self.result(), "| cell | score |")
        return tracker

    def check(self, uri):
        """Every planned trial once, none RUNNING, all values there, parents right."""
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name(self.study.name).experiment_id
        runs = {run.info.run_id: run for run in client.search_runs([experiment])}
        kinds = [run.data.tags["nlgraft.kind"] for run in runs.values()]
        assert sorted(kinds) == ["cell"] * len(self.cells) + ["study"] + ["trial"] * len(self.ended)
        assert {run.info.status for run in runs.values()} == {"FINISHED"}
        above = {"trial": "cell"}
        for run in runs.values():
            kind = run.data.tags["nlgraft.kind"]
            if kind in above:
                parent = runs[run.data.tags["mlflow.parentRunId"]]
                assert parent.data.tags["nlgraft.kind"] == above[kind]
        by_fingerprint = {run.data.tags["nlgraft.fingerprint"]: run for run in runs.values()}
        for trial, record in self.ended:
            run = by_fingerprint[trial.fingerprint]
            assert record.metrics.items() <= run.data.metrics.items()
            assert len(client.get_metric_history(run.info.run_id, "test/score")) == 1
        return client, list(runs.values())


@pytest.fixture
def recorded(toy_document, request):
    return Told(toy_document, re.sub(r"\W+", "-", request.node.name).strip("-"))


def test_a_study_through_a_server(recorded, server):
    tracker = recorded.run(server)
    assert tracker.close() == 0
    client, runs = recorded.check(server)
    trial = next(run for run in runs if run.data.tags["nlgraft.kind"] == "trial")
    assert [m.step for m in client.get_metric_history(trial.info.run_id, "train/loss")] == [1, 2, 3]
    names = {entry.path for entry in client.list_artifacts(trial.info.run_id)}
    assert {"config.json", "record.json", "metrics.json"} <= names
    assert not list(client.search_runs(["0"]))

    assert recorded.run(server).close() == 0  # the same again changes nothing
    _, again = recorded.check(server)
    before, after = (
        {run.info.run_id: (run.data.metrics, run.data.params, run.data.tags) for run in listed}
        for listed in (runs, again)
    )
    assert after == before


@pytest.mark.parametrize("fault", ["500", "429", "refuse", "lose the answer", "slow"])
def test_faults_in_the_middle_of_a_study(recorded, proxy, fault):
    """Training does not stop; everything is recorded in the end, and once."""
    tracker = recorded.start(proxy.address)
    proxy.fault = fault
    began = time.monotonic()
    for trial, record in recorded.ended:
        tracker.trial_started(trial)
        tracker.trial_metrics(trial, 1, {"train/loss": 1.0}, 1)
        tracker.trial_ended(trial, record, recorded.store)
    assert time.monotonic() - began < patient(10)  # only queued
    time.sleep(3)
    proxy.fault = ""
    tracker.finish_study(recorded.result(), "")
    assert tracker.close() == 0
    recorded.check(proxy.address)


def test_a_server_that_is_away_from_start_to_end_is_told_by_the_next_run(recorded, proxy, caplog):
    proxy.fault = "refuse"
    tracker = recorded.run(proxy.address)
    assert tracker.close() == 1 + 2 + 4
    assert "lacks a part of 7 runs" in caplog.text
    proxy.fault = ""
    tracker = recorded.start(proxy.address)
    for trial, record in recorded.ended:
        tracker.trial_ended(trial, record, recorded.store)
    tracker.finish_study(recorded.result(), "")
    assert tracker.close() == 0
    recorded.check(proxy.address)


CREATE = """
import json, sys, types
from nlgraft.tracking.mlflow_tracker import MlflowTracker
from tests.proxies import listening
from tests.servers import mlflow_server
uri, number = sys.argv[1:]
objective = types.SimpleNamespace(metric="dev/x", direction="maximize", sign=1)
study = types.SimpleNamespace(
    variant="race", overrides=[], description="", system="s", seeds=[1], data={}, objective=objective,
    to_yaml=lambda is_public: "",
)
tracker = MlflowTracker(uri, "race", start_timeout_s=600)
tracker.start_study(study, number * 8, [])
tracker.finish_study({}, "")
print(json.dumps(tracker.close(600)))
"""


@pytest.mark.slow
def test_sixteen_processes_meet_at_one_empty_database(tmp_path):
    """One experiment, no half-migrated schema, nothing in Default."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "platform"}
    command = [sys.executable, "-c", CREATE, uri]
    processes = [
        subprocess.Popen(
            [*command, f"{number:x}"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for number in range(16)
    ]
    for process in processes:
        out, err = process.communicate(timeout=800)
        assert (json.loads(out), err.decode()) == (0, "")
    client = MlflowClient(uri)
    experiments = client.search_experiments()
    assert sorted(experiment.name for experiment in experiments) == ["Default", "race"]
    runs = client.search_runs([experiment.experiment_id for experiment in experiments])
    assert [run.info.status for run in runs] == ["FINISHED"] * 16
    assert "0" not in {run.info.experiment_id for run in runs}
