import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pandas as pd
import pytest

from nlgraft.tracking.served import save_predictor
from tests.servers import first_answer, free_port

PREDICTORS = '''
"""Two predictors, as a system offers them: they open a directory and return the function that predicts."""


def open_suffix(directory):
    suffix = (directory / "suffix.txt").read_text()
    return lambda texts: [text + suffix for text in texts]


def open_join(directory):
    return lambda first, second: [f"{a}|{b}" for a, b in zip(first, second, strict=True)]
'''


@pytest.fixture
def predictors(tmp_path, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    (code / "toy_predictors.py").write_text(PREDICTORS)
    monkeypatch.syspath_prepend(str(code))
    sys.modules.pop("toy_predictors", None)
    return code


@pytest.fixture
def load(monkeypatch):
    import mlflow.pyfunc

    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    return mlflow.pyfunc.load_model


def test_the_best_replicate_is_served_once(
    open_tracker, client, uri, toy, store, predictors, load, monkeypatch
):
    """design.md §8: the best model of a study is a logged pyfunc model."""
    trials = toy.trials[:3]
    dev = {"metrics": {"dev/bleu": 30.0}}, {"metrics": {"dev/bleu": 33.0}}, {"metrics": {"dev/bleu": 31.0}}
    for trial in trials:
        toy.publish(store, trial, {"predictor": "toy_predictors:open_suffix"})
    for _ in range(2):
        tracker = open_tracker()
        for trial, fields in zip(trials, dev, strict=True):
            tracker.trial_ended(trial, toy.record(trial, **fields), store)
        tracker.finish_study(toy.result(), "")
        assert tracker.close() == 0
    experiment = client.get_experiment_by_name("demo").experiment_id
    (model,) = client.search_logged_models([experiment])
    study, best = (
        client.search_runs([experiment], f"tags.`mlflow.runName` = '{name}'")[0]
        for name in ("demo", "baseline, seed 2")
    )
    assert model.source_run_id == best.info.run_id
    assert study.data.tags["nlgraft.model"] == model.model_uri
    assert [output.model_id for output in best.outputs.model_outputs] == [model.model_id]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    loaded = load(model.model_uri)
    assert loaded.predict(["guten Tag", "ja"]) == ["guten Tag!", "ja!"]


def test_a_study_whose_best_trial_has_no_predictor_ends_without_a_model(open_tracker, client, toy, store):
    trial = toy.trials[0]
    toy.publish(store, trial)
    tracker = open_tracker()
    tracker.trial_ended(trial, toy.record(trial, metrics={"dev/bleu": 30.0}), store)
    tracker.finish_study(toy.result(), "")
    assert tracker.close() == 0
    assert not client.search_logged_models([client.get_experiment_by_name("demo").experiment_id])


def test_several_inputs_are_columns(tmp_path, predictors, load):
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / "predictor.json").write_text('{"predictor": "toy_predictors:open_join"}')
    save_predictor(tmp_path / "model", directory, ["source", "draft"])
    loaded = load(str(tmp_path / "model"))
    frame = pd.DataFrame({"draft": ["x", "y"], "source": ["a", "b"]})
    assert loaded.predict(frame) == ["a|x", "b|y"]


def test_nothing_in_a_served_model_is_pickled(tmp_path, predictors):
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / "predictor.json").write_text('{"predictor": "toy_predictors:open_suffix"}')
    save_predictor(tmp_path / "model", directory, [])
    files = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert "predictor.json" in files
    assert not {name for name in files if name.endswith((".pkl", ".pickle", ".pt", ".bin"))}


@pytest.mark.slow
def test_mlflow_models_serve_answers(tmp_path, predictors):
    """``mlflow models serve`` without a new environment, one request by HTTP."""
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / "predictor.json").write_text('{"predictor": "toy_predictors:open_suffix"}')
    (directory / "suffix.txt").write_text("!")
    save_predictor(tmp_path / "model", directory, [])
    port = free_port()
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(predictors), "platform"]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # of uvicorn
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    command += ["-m", str(tmp_path / "model"), "-h", "127.0.0.1", "-p", str(port), "-w", "1"]
    with (tmp_path / "serve.log").open("w") as log:
        server = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            json.dumps({"inputs": ["guten Tag", "ja"]}).encode(),
            {"Content-Type": "application/json"},
        )
        answer = first_answer(request, server, tmp_path / "serve.log")
        assert json.loads(answer) == {"predictions": ["guten Tag!", "ja!"]}
    finally:
        if server.poll() is None:
            os.killpg(server.pid, 15)
            server.wait(30)
