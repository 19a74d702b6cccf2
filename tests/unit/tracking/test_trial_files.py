import math

from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.study.data.study import Objective
from nlgraft.tracking import entries
from nlgraft.tracking.entries import copy_scored_files, find_model
from nlgraft.tracking.mlflow_tracker import BestTrial


def publish(store, stage, files):
    scratch = store.new_scratch(stage)
    for name, text in files.items():
        (scratch / name).write_text(text)
    store.publish(stage, scratch)


def copied(scores, store, directory):
    """The names of the files of a trial."""
    target = directory / "target"
    target.mkdir()
    copy_scored_files(StageGraph(scores), store, target)
    return {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}


def test_scored_texts_are_kept_and_weights_are_not(store, tmp_path):
    upstream = Stage(name="upstream", run="toy:train")
    scores = Stage(name="scores", run="toy:score", inputs={"model": upstream})
    publish(store, upstream, {"metrics.json": "{}", "model.safetensors": "w", "hypotheses-dev.txt": "h"})
    publish(
        store, scores, {"metrics.json": "{}", "segments-test.safetensors": "s", "references-test.txt": "r"}
    )
    assert copied(scores, store, tmp_path) == {
        "metrics.json",
        "segments-test.safetensors",
        "references-test.txt",
        "upstream/metrics.json",
        "upstream/hypotheses-dev.txt",
    }


def test_files_that_are_too_big_stay_in_the_store(store, tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "MAX_FILE_BYTES", 3)
    scores = Stage(name="scores", run="toy:score")
    publish(store, scores, {"metrics.json": "{}", "hypotheses-test.txt": "long"})
    assert copied(scores, store, tmp_path) == {"metrics.json"}


def test_a_damaged_artifact_costs_its_files_and_a_warning(store, tmp_path, caplog):
    scores = Stage(name="scores", run="toy:score")
    publish(store, scores, {"metrics.json": "{}"})
    (store.fetch(scores) / "metrics.json").write_text("[]]")
    assert copied(scores, store, tmp_path) == set()
    assert "files of stage scores cannot be logged" in caplog.text


def test_the_model_is_that_of_the_latest_stage_with_a_predictor(store):
    upstream = Stage(name="upstream", run="toy:train")
    finetune = Stage(name="finetune", run="toy:train", inputs={"model": upstream})
    scores = Stage(name="scores", run="toy:score", inputs={"model": finetune})
    for stage in (upstream, finetune):
        publish(store, stage, {"predictor.json": "{}", "name.txt": stage.name})
    graph = StageGraph(scores)
    model = find_model(graph, store)
    assert (model / "name.txt").read_text() == "finetune"
    assert find_model(StageGraph(Stage(name="other", run="toy:other")), store) is None


def test_the_best_trial_is_chosen_on_the_objective_among_finished_replicates(toy, store):
    best = BestTrial(Objective(metric="dev/loss", direction="minimize"))
    values = [("replicate", "finished", 2.0), ("replicate", "finished", 1.0), ("replicate", "finished", 1.0)]
    values += [("search", "finished", 0.1), ("replicate", "failed", 0.2), ("replicate", "finished", math.nan)]
    trials = [toy.Trial(toy.cells[0], str(number), kind=kind) for number, (kind, _, _) in enumerate(values)]
    for trial, (_, state, value) in zip(trials, values, strict=True):
        best.consider(trial, toy.record(trial, state, metrics={"dev/loss": value}), store)
    best.consider(trials[0], toy.record(trials[0], metrics={}), store)
    assert best.model.fingerprint == trials[1].fingerprint
