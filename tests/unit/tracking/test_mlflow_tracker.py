"""Runs, tags, metrics and states of a study as MLflow shows them."""

import base64
import json
import math
import time
import zlib

import pytest

from nlgraft.tracking.check import check_runs
from nlgraft.tracking.mlflow_tracker import MlflowTracker
from nlgraft.tracking.writer import Writer
from tests.unit.tracking.runs import (
    CELLS,
    NESTED,
    artifact_names,
    end_trial,
    first_run,
    runs_by_name,
)


def test_cells_stand_first_with_results_on_every_level(client, reported):
    """Cells lie below no run, the baseline leads, and the cell run carries the comparison."""
    runs = runs_by_name(client)
    assert len(runs) == 1 + 2 + 4
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    study, cell, trial = runs["demo"], runs[CELLS[1]], runs["arm=avg_eg, seed 2"]
    assert trial.data.tags[NESTED] == cell.info.run_id
    listed = [run.info.run_name for run in client.search_runs([study.info.experiment_id])]
    assert [name for name in listed if NESTED not in runs[name].data.tags] == [*CELLS, "demo"]

    assert study.data.tags["mlflow.note.content"] == "Which arm?\n\n| cell | bleu |"
    sentence = "test/bleu 20.50 ± 0.50, 2 seeds; +1.5 [0.5, 2.5] against the baseline"
    assert cell.data.tags["mlflow.note.content"].startswith(sentence)
    assert cell.data.tags["nlgraft.interval"] == "[0.5, 2.5]"
    assert study.data.tags["nlgraft.claim.1"] == "supported: avg_eg > none"
    assert cell.data.metrics == {
        "test/bleu.mean": 20.5,
        "test/bleu.std": 0.5,
        "test/bleu.n": 2,
        "test/bleu.difference": 1.5,
        "test/bleu.ci_low": 0.5,
        "test/bleu.ci_high": 2.5,
        "test/bleu.p_holm": 0.04,
    }
    assert trial.data.metrics == {"train/loss": 1.5, "dev/bleu": 19.0, "test/bleu": 20.0}
    history = client.get_metric_history(trial.info.run_id, "train/loss")
    assert [(m.step, m.value, m.timestamp) for m in history] == [(10, 2.5, 1_000_010), (20, 1.5, 1_000_020)]
    (final,) = client.get_metric_history(trial.info.run_id, "test/bleu")
    assert (final.step, final.timestamp) == (20, 1_001_000)
    assert sorted(trial.data.params)[:2] == ["_factor.arm", "arm"]
    assert trial.data.params["_factor.arm"] == "avg_eg"
    assert trial.data.params["train.peak_lr"] == "0.001"


def test_a_cell_of_one_seed_says_so_in_its_name(open_tracker, client, toy):
    tracker = open_tracker()
    result = toy.result()
    result["cells"][1]["metrics"]["test/bleu"] |= {"std": None, "n": 1}
    tracker.finish_study(result, "")
    tracker.close()
    assert set(runs_by_name(client)) == {"demo", CELLS[0], "arm=avg_eg 20.50 (1 seed)"}


def test_the_experiment_describes_the_result_and_offers_a_view_of_its_cells(open_tracker, client, toy):
    tracker = open_tracker()
    tracker.finish_study(toy.result(), "| cell | bleu |")
    tracker.close()
    tags = client.get_experiment_by_name("demo").tags
    assert tags["mlflow.note.content"] == "Which arm?\n\n| cell | bleu |"
    view = json.loads(tags["mlflow.sharedViewState.cells"])
    state = json.loads(zlib.decompress(base64.b64decode(view["state"].removeprefix("deflate;"))))
    assert state["selectedColumns"][:2] == ["metrics.`test/bleu.mean`", "metrics.`test/bleu.difference`"]


def test_parameters_are_the_settings_that_take_part(uri, client, toy):
    tracker = MlflowTracker(uri, "demo")
    tracker.start_study(
        toy.study, toy.fingerprint, toy.cells, is_read=lambda path, config: path != "train.max_steps"
    )
    config = {**toy.trials[0].config, "teacher": None}
    tracker.trial_started(toy.Trial(toy.cells[0], "x", config=config))
    tracker.close()
    params = first_run(client).data.params
    assert set(params) == {"_factor.arm", "arm", "train.peak_lr", *(f"data.{k}" for k in config["data"])}


def test_cells_in_an_experiment_of_several_studies_carry_the_name_of_theirs(open_tracker, client):
    open_tracker(experiment="all").close()
    assert set(runs_by_name(client, "all")) == {"demo", "demo: baseline", "demo: arm=avg_eg"}


def test_tags_data_sets_and_artifacts_of_a_trial(client, toy, reported, tmp_path):
    runs = runs_by_name(client)
    study, trial = runs["demo"], runs["arm=avg_eg, seed 2"]
    expected = {
        "nlgraft.kind": "trial",
        "nlgraft.trial_kind": "replicate",
        "nlgraft.cell": "arm=avg_eg",
        "nlgraft.factor.arm": "avg_eg",
        "nlgraft.seed": "2",
        "nlgraft.study": "demo",
        "nlgraft.fingerprint": toy.trials[3].fingerprint,
        "nlgraft.state": "finished",
        "nlgraft.end_reason": "done",
        "nlgraft.host": "here",
    }
    assert expected.items() <= trial.data.tags.items()
    assert {"mlflow.user", "mlflow.source.name", "mlflow.source.type"} <= set(trial.data.tags)
    for run in (study, trial):
        seen = {entry.dataset.name: entry for entry in run.inputs.dataset_inputs}
        assert set(seen) == {"conlang/train", "conlang/dev", "conlang/test"}
        assert len(run.inputs.dataset_inputs) == 3
        train = seen["conlang/train"]
        assert [(tag.key, tag.value) for tag in train.tags] == [("mlflow.data.context", "train")]
        assert json.loads(train.dataset.profile) == {"segments": 9}
    assert len({entry.dataset.digest for entry in trial.inputs.dataset_inputs}) == 3

    message = {"config.json", "record.json", "metrics.json", "hypotheses-test.txt"}
    assert artifact_names(client, trial) == message  # but no weights
    assert artifact_names(client, study) == {"study.yaml", "result.json", "report"}
    assert artifact_names(client, study, "report") == {"report/report.html"}
    directory = tmp_path / "mlflow-artifacts/demo" / trial.info.run_id / "artifacts"
    assert (directory.parents[1] / study.info.run_id / "artifacts/study.yaml").read_text() == "name: demo \n"
    record = json.loads((directory / "record.json").read_text())
    assert record["signatures"] == {"test/bleu": "nrefs:1|tok:13a"}
    assert (directory / "hypotheses-test.txt").read_text() == "a b\n"


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [
        ("stopped", "asha: below the median at step 10", "FINISHED"),
        ("failed", "train: loss is NaN at step 10", "FAILED"),
        ("killed", "SIGTERM", "KILLED"),
    ],
)
def test_states_of_a_trial(open_tracker, client, toy, state, reason, status):
    tracker = open_tracker()
    trial = toy.trials[0]
    tracker.trial_started(trial)
    tracker.trial_ended(trial, toy.record(trial, state, reason))
    tracker.close()
    run = first_run(client)
    assert run.info.status == status
    assert run.data.tags["nlgraft.state"] == state
    assert run.data.tags["nlgraft.end_reason"] == reason


def test_values_that_are_not_finite_are_kept_and_kept_once(open_tracker, client, toy):
    """NaN and infinities are accepted."""
    trial = toy.trials[0]
    record = toy.record(
        trial,
        "failed",
        "train: loss is NaN at step 20",
        metrics={"dev/loss": math.nan, "dev/worst": math.inf},
        curves={"train/loss": [[10, 2.5, 1_000_010], [20, math.nan, 1_000_020]]},
    )
    for _ in range(2):
        tracker = open_tracker()
        tracker.trial_started(trial)
        tracker.trial_ended(trial, record)
        tracker.close()
    run = first_run(client)
    assert math.isnan(run.data.metrics["dev/loss"])
    assert run.data.metrics["dev/worst"] > 1e308
    assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 2
    assert len(client.get_metric_history(run.info.run_id, "dev/loss")) == 1
    assert len(client.get_metric_history(run.info.run_id, "dev/worst")) == 1


def test_more_points_than_one_batch_holds(open_tracker, client, toy):
    trial = toy.trials[0]
    curve = [[step, step / 7, 1_000_000 + step] for step in range(2500)]
    end_trial(open_tracker(), toy, trial, curves={"train/loss": curve})
    run = first_run(client)
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [[m.step, m.value, m.timestamp] for m in history] == curve


def test_interrupt_kills_what_runs(open_tracker, client, toy):
    tracker = open_tracker()
    done, running = toy.trials[:2]
    for trial in (done, running):
        tracker.trial_started(trial)
    tracker.trial_ended(done, toy.record(done))
    tracker.interrupt("SIGTERM")
    tracker.close()
    runs = runs_by_name(client)
    assert runs["baseline, seed 1"].info.status == "FINISHED"
    for name in ("baseline, seed 2", "baseline", "demo"):
        assert runs[name].info.status == "KILLED"
        assert runs[name].data.tags["nlgraft.end_reason"] == "SIGTERM"


def test_the_wait_at_the_end_counts_from_the_last_trial(uri, toy, monkeypatch):
    """The report of a large study takes its time; MLflow gets what that leaves of the end of a run."""
    now_s, waits_s = [100.0], []
    monkeypatch.setattr(Writer, "start", lambda *_: None)
    monkeypatch.setattr(Writer, "close", lambda _, timeout_s: waits_s.append(timeout_s))
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    tracker = MlflowTracker(uri, "demo")
    tracker.start_study(toy.study, toy.fingerprint, toy.cells)
    for report_s in (0.0, 12.0, 25.0):
        tracker.trial_ended(toy.trials[0], toy.record(toy.trials[0]))
        now_s[0] += report_s
        tracker.close()
    assert waits_s == [27.0, 15.0, 10.0]


def test_failed_cells_are_failed_and_the_study_says_so(open_tracker, client, toy):
    tracker = open_tracker()
    tracker.finish_study(toy.result(states=("finished", "failed")), "")
    tracker.close()
    runs = runs_by_name(client)
    assert runs[CELLS[1]].info.status == "FAILED"
    assert runs["demo"].info.status == "FINISHED"
    assert runs["demo"].data.tags["nlgraft.state"] == "finished, 1 of its cells failed"


def test_one_trial_in_two_cells_is_one_run_in_each(open_tracker, client, toy):
    tracker = open_tracker()
    same = [toy.Trial(cell, "same", 1) for cell in toy.cells]
    for trial in same:
        tracker.trial_started(trial)
    for trial in same:
        tracker.trial_ended(trial, toy.record(trial))
    tracker.close()
    runs = runs_by_name(client)
    assert {runs[name].info.status for name in ("baseline, seed 1", "arm=avg_eg, seed 1")} == {"FINISHED"}


def test_a_final_value_that_the_curve_ends_with_is_one_point(open_tracker, client, toy):
    trial = toy.trials[0]
    end_trial(open_tracker(), toy, trial, metrics={"dev/bleu": 19.0, "train/loss": 1.4})
    run_id = first_run(client).info.run_id
    assert len(client.get_metric_history(run_id, "dev/bleu")) == 1
    losses = sorted((m.timestamp, m.step, m.value) for m in client.get_metric_history(run_id, "train/loss"))
    assert losses == [(1_000_010, 10, 2.5), (1_000_020, 20, 1.5), (1_001_000, 20, 1.4)]
    assert first_run(client).data.metrics["train/loss"] == 1.4


def test_two_studies_at_once_on_one_database(open_tracker, client, toy):
    """No lock error, right parents."""
    names = ("first", "second")
    trackers = [open_tracker(fingerprint=name[0] * 64, experiment=name) for name in names]
    trials = [toy.Trial(toy.cells[seed % 2], f"t{seed}", seed) for seed in range(12)]
    for trial in trials:
        for tracker in trackers:
            tracker.trial_started(trial)
            tracker.trial_ended(trial, toy.record(trial))
    for tracker in trackers:
        tracker.finish_study(toy.result(), "")
    assert [tracker.close() for tracker in trackers] == [0, 0]
    for name in names:
        runs = runs_by_name(client, name)
        assert len(runs) == 1 + 2 + 12
        assert {run.info.status for run in runs.values()} == {"FINISHED"}
        for trial in trials:
            run = runs[f"demo: {trial.cell.label}, seed {trial.seed}"]
            label = {"baseline": CELLS[0], "arm=avg_eg": CELLS[1]}[trial.cell.label]
            assert run.data.tags[NESTED] == runs[f"demo: {label}"].info.run_id


def test_two_stores_that_report_one_study_have_each_its_own_runs(open_tracker, client, uri, toy):
    """On machines without a common store; what the second trains is not what the first has trained."""
    trial = toy.Trial(toy.cells[0], "t1", 1)
    for store_id, bleu in {"a": 20.0, "b": 21.0}.items():
        record = toy.record(trial, bleu=bleu)
        tracker = open_tracker(store_id=store_id)
        tracker.trial_ended(trial, record)
        tracker.close()
        layout = tracker._layout
        parents = [layout.study_key, *map(layout.cell_key, toy.cells)]
        entries = [layout.trial_end(trial, record)]
        assert check_runs(uri, "demo", toy.fingerprint, parents, entries, store_id) == []
    runs = client.search_runs([client.get_experiment_by_name("demo").experiment_id])
    assert len(runs) == 2 * (1 + len(toy.cells) + 1)
    trials = [run for run in runs if run.data.tags["nlgraft.kind"] == "trial"]
    assert sorted(run.data.metrics["test/bleu"] for run in trials) == [20.0, 21.0]


def test_search_trials_carry_their_proposal(open_tracker, client, toy):
    trial = toy.Trial(toy.cells[0], "s3", kind="search", number=3, params={"train.peak_lr": 0.002})
    end_trial(open_tracker(), toy, trial)
    run = runs_by_name(client)["baseline, search 3"]
    assert {entry.dataset.name for entry in run.inputs.dataset_inputs} == {"conlang/train", "conlang/dev"}
    tags = run.data.tags
    assert tags["nlgraft.trial_kind"] == "search"
    assert tags["nlgraft.number"] == "3"
    assert json.loads(tags["nlgraft.params"]) == {"train.peak_lr": 0.002}


def test_a_deleted_experiment_is_restored_with_a_warning(open_tracker, client, toy, caplog):
    open_tracker().close()
    client.delete_experiment(client.get_experiment_by_name("demo").experiment_id)
    tracker = open_tracker()
    tracker.finish_study(toy.result(), "")
    tracker.close()
    assert client.get_experiment_by_name("demo").lifecycle_stage == "active"
    assert "had been deleted; it is restored" in caplog.text
    assert runs_by_name(client)["demo"].info.status == "FINISHED"


def test_a_run_that_was_made_twice_is_reduced_to_the_older_one(open_tracker, client, toy):
    """A request that was carried out although its answer was lost."""
    trial = toy.trials[0]
    end_trial(open_tracker(), toy, trial)
    run = first_run(client)
    client.create_run(run.info.experiment_id, run.info.start_time + 5, run.data.tags)
    open_tracker().close()
    assert first_run(client).info.run_id == run.info.run_id
