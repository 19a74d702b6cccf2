"""Short trials in batches: a driver that is killed between them loses none and repeats none."""

import json
import os
import signal
import time
from collections import Counter

import pytest
from mlflow import MlflowClient

from benchmarks import many_trials
from benchmarks.overhead import empty_study
from nlgraft import api
from tests.commands import write_study
from tests.integration.test_command_line import start

NUM_SEEDS = 120


@pytest.mark.slow
def test_a_killed_driver_loses_no_short_trial_and_repeats_none(toy_document, tmp_path):
    toy_document["factors"] = {}
    toy_document["seeds"] = list(range(1, NUM_SEEDS + 1))
    toy_document["base"]["steps"] = 1
    command = ("run", write_study(tmp_path / "study.yaml", toy_document), "--json")
    records = tmp_path / "store/records/trials"

    def finished():
        states = {path.stem: json.loads(path.read_text())["state"] for path in records.glob("[!.]*.json")}
        return {fingerprint for fingerprint, state in states.items() if state == "finished"}

    driver = start(*command)
    end_s = time.monotonic() + 300
    while len(finished()) < 20:
        assert driver.poll() is None
        assert time.monotonic() < end_s
        time.sleep(0.02)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(60)
    time.sleep(2.0)  # Ray ends the workers of a driver that is gone
    before = finished()
    assert len(before) < NUM_SEEDS

    again = start(*command)
    out, err = again.communicate(timeout=500)
    assert again.returncode == 0, err
    result = json.loads(out.splitlines()[-1])
    assert [cell["state"] for cell in result["cells"]] == ["finished"]
    assert len(finished()) == NUM_SEEDS
    trainings = Counter(
        line.split()[1] for line in (tmp_path / "log").read_text().splitlines() if line.startswith("training")
    )
    assert len(trainings) == NUM_SEEDS
    assert sum(trainings.values()) <= NUM_SEEDS + 2, "at most the trial that each worker computed runs again"
    client = MlflowClient(f"sqlite:///{tmp_path / 'store/mlflow.db'}")
    [experiment] = [candidate for candidate in client.search_experiments() if candidate.name == "toy"]
    runs = client.search_runs(
        [experiment.experiment_id], "tags.`nlgraft.kind` = 'trial'", max_results=NUM_SEEDS * 2
    )
    assert Counter(run.data.tags["nlgraft.fingerprint"] for run in runs) == Counter(finished())
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all(run.data.metrics["test/score"] > 0 for run in runs)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_trials_are_each_there_once_and_the_driver_stays_small(tmp_path):
    course = many_trials.run_once(tmp_path)
    assert len(course.trials_s) == many_trials.NUM_TRIALS
    growth = course.resident_mib[many_trials.NUM_TRIALS] / course.resident_mib[many_trials.NUM_WARM]
    assert growth < 1.2
    study = empty_study(tmp_path, many_trials.NUM_TRIALS, many_trials.NUM_WORKERS)
    for _ in range(9):  # a run waits 30 s for MLflow to take what is left; the next ones add it
        many_trials.run_once(tmp_path)
        verified = api.verify(study, tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
        if not verified.findings:
            break
    assert (verified.num_planned, verified.findings) == (many_trials.NUM_TRIALS, ())
