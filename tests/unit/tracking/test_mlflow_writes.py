"""What is written to MLflow, and how often: once, also over several drivers and crashes."""

import pytest

from nlgraft.tracking import backend
from nlgraft.tracking.check import check_runs
from nlgraft.tracking.layout import StudyLayout
from tests.processes import wait_until
from tests.unit.tracking.runs import NESTED, end_trials, first_run, runs_by_name, snapshot


def test_reporting_a_finished_study_again_changes_nothing(open_tracker, client, toy, store, reported):
    """design.md §8: reporting again after a crash changes nothing."""
    before = snapshot(client)
    for _ in range(2):
        tracker = open_tracker()
        end_trials(tracker, toy, store)
        tracker.finish_study(toy.result(), "| cell | bleu |")
        tracker.close()
    after = snapshot(client)
    trials = [name for name in before if ", seed" in name]
    assert len(trials) == 4
    assert {name: after[name] for name in trials} == {name: before[name] for name in trials}
    for name in set(before) - set(trials):  # the study and its cells ran again: only their end is another
        run_id, status, _, *rest = before[name]
        assert (after[name][0], after[name][1], list(after[name][3:])) == (run_id, status, rest)


REQUESTS = [
    "create_run",
    "get_run",
    "log_batch",
    "log_inputs",
    "log_artifacts",
    "set_tag",
    "set_terminated",
    "update_run",
]


@pytest.fixture
def calls(monkeypatch, client):
    """Names of the calls to MLflow, in order, with the runs that they are about."""
    made = []
    for name in REQUESTS:
        original = getattr(type(client), name)

        def call(self, *args, _name=name, _original=original, **kwargs):
            made.append((_name, args[0]))
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(type(client), name, call)
    return made


def test_a_short_trial_takes_four_requests_beside_its_files_and_a_written_one_none(
    open_tracker, client, toy, store, calls, monkeypatch
):
    tracker = open_tracker()
    for trial in toy.trials:
        tracker.trial_started(trial)
        toy.publish(store, trial)
        tracker.trial_ended(trial, toy.record(trial), store)
    tracker.close()
    written = {run.info.run_id: name for name, run in runs_by_name(client).items() if ", seed" in name}
    assert len(written) == 4
    for run_id in written:
        of_run = [name for name, first in calls if first == run_id]
        assert of_run == ["log_inputs", "log_batch", "set_terminated"]  # and create_run
        assert client.list_artifacts(run_id)

    calls.clear()
    monkeypatch.setattr(StudyLayout, "_ended", lambda *_: pytest.fail("built though it is written"))
    tracker = open_tracker()
    end_trials(tracker, toy, store)
    assert tracker.close() == 0
    assert not [name for name, first in calls if first in written]
    assert [name for name, _ in calls].count("create_run") == 0


def test_a_complete_study_is_recognised_without_reading_its_trials(
    open_tracker, client, toy, store, reported, monkeypatch
):
    """Reading 10,000 runs takes as long as all else that a second run does."""
    monkeypatch.setattr(backend, "_MAX_READ", 0)
    before = snapshot(client)

    def run_again():
        read = []
        search = type(client).search_runs

        def search_and_note(self, *args, **kwargs):
            runs = search(self, *args, **kwargs)
            read.extend(run.info.run_name for run in runs if run.info.lifecycle_stage == "active")
            return runs

        with monkeypatch.context() as patch:
            patch.setattr(type(client), "search_runs", search_and_note)
            tracker = open_tracker()
            end_trials(tracker, toy, store, is_reused=True)
            tracker.finish_study(toy.result(), "| cell | bleu |")
            assert tracker.close() == 0
        return [name for name in read if ", seed" in name]

    assert run_again() == []
    assert set(snapshot(client)) == set(before)
    name = next(name for name in before if ", seed" in name)
    client.delete_run(before[name][0])
    assert len(run_again()) == 3, "a person has deleted a run, so it is looked which are there"
    after = snapshot(client)
    assert after[name][1:5] == before[name][1:5], "and written again"
    assert {run_name: after[run_name] for run_name in after if ", seed" in run_name and run_name != name} == {
        run_name: before[run_name] for run_name in before if ", seed" in run_name and run_name != name
    }


@pytest.mark.parametrize("damage", ["purge", "digest", "FAILED"])
def test_what_a_person_damaged_in_a_complete_study_is_repaired(
    open_tracker, client, uri, toy, store, reported, damage
):
    entries = [reported._layout.trial_end(trial, toy.record(trial)) for trial in toy.trials]

    def findings():
        return check_runs(uri, "demo", toy.fingerprint, [], entries)

    assert findings() == []
    run = next(run for name, run in runs_by_name(client).items() if ", seed" in name)
    match damage:
        case "purge":
            client.delete_run(run.info.run_id)
            client._tracking_client.store._hard_delete_run(run.info.run_id)
        case "FAILED":
            client.set_terminated(run.info.run_id, "FAILED")
        case "digest":
            client.set_tag(run.info.run_id, "nlgraft.digest", "")
    assert len(findings()) == 1
    tracker = open_tracker()
    end_trials(tracker, toy, store, is_reused=True)
    tracker.close()
    assert findings() == []


def test_the_driver_remembers_little_of_trials_that_are_written(open_tracker, toy, store):
    tracker = open_tracker()
    for trial in toy.trials:
        tracker.trial_started(trial)
        tracker.trial_ended(trial, toy.record(trial), store)
    tracker.close()
    assert not tracker._writer._due_s
    runs = tracker._writer._backend._index(True)
    assert len(runs) == 4
    assert {run.content for run in runs.values()} == {None}


@pytest.mark.parametrize("state", ["finished", "killed"])
def test_a_trial_that_was_written_in_part_is_completed_by_the_next_driver(
    open_tracker, client, toy, monkeypatch, state
):
    """The driver dies before the last of a trial's writes: the next one must not take it for complete."""
    trial = toy.trials[0]

    def die(*_):
        raise OSError("the driver is gone")

    with monkeypatch.context() as dying:
        dying.setattr(type(client), "log_batch", die)
        dying.setattr(type(client), "set_terminated", die)
        tracker = open_tracker()
        tracker.trial_ended(trial, toy.record(trial, state))
        assert tracker.close() > 0
    tracker = open_tracker()
    tracker.trial_ended(trial, toy.record(trial, state))
    assert tracker.close() == 0
    run = first_run(client)
    assert run.info.status == state.upper()
    assert run.data.tags["nlgraft.state"] == state
    assert run.data.metrics["test/bleu"] == 20.0
    assert run.data.params["train.max_steps"] == "20"


def test_records_alone_give_the_same_runs_as_live_reports(open_tracker, client, toy, store, reported):
    live = snapshot(client)
    tracker = open_tracker(experiment="again")
    end_trials(tracker, toy, store)
    tracker.finish_study(toy.result(), "| cell | bleu |")
    tracker.close()
    replayed = {name.removeprefix("demo: "): run for name, run in snapshot(client, "again").items()}
    assert set(replayed) == set(live)
    for name in live:
        if ", seed" in name:
            tags = [dict(snap[name][4]) for snap in (live, replayed)]
            for each in tags:
                each.pop(NESTED)
                for name_dependent in ("mlflow.runName", "nlgraft.digest"):  # the name tells the study here
                    each.pop(name_dependent)
            assert tags[0] == tags[1]
            assert live[name][3] == replayed[name][3]
            assert live[name][5] == replayed[name][5]


def test_a_crash_leaves_orphans_that_the_next_driver_ends_or_continues(open_tracker, client, toy):
    """MLflow holds each planned trial once, none RUNNING."""
    crashed = open_tracker()
    first, second = toy.trials[:2]
    for trial in (first, second):
        crashed.trial_started(trial)
        crashed.trial_metrics(trial, 10, {"train/loss": 2.5}, 1_000_007)
    wait_until(lambda: len(runs_by_name(client)) == 5)
    crashed._running.clear()  # it dies: nothing is ended
    crashed._writer.close(10)
    assert {run.info.status for run in runs_by_name(client).values()} == {"RUNNING"}

    tracker = open_tracker()
    wait_until(lambda: first_run(client).info.status == "KILLED")
    tracker.trial_started(first)
    wait_until(lambda: first_run(client).info.status == "RUNNING")
    tracker.trial_ended(first, toy.record(first))
    tracker.finish_study(toy.result(), "")
    tracker.close()
    runs = runs_by_name(client)
    assert len(runs) == 5
    assert runs["baseline, seed 1"].info.status == "FINISHED"
    assert runs["baseline, seed 1"].data.tags["nlgraft.end_reason"] == "done"
    assert runs["baseline, seed 2"].info.status == "KILLED"
    assert "driver ended" in runs["baseline, seed 2"].data.tags["nlgraft.end_reason"]
    history = client.get_metric_history(runs["baseline, seed 1"].info.run_id, "train/loss")
    assert [m.step for m in history] == [10, 20]  # step 10 was told before the crash, at another time


def test_what_the_record_says_of_a_step_is_there_even_if_something_else_was_told_live(
    open_tracker, client, toy
):
    trial = toy.trials[0]
    tracker = open_tracker()
    tracker.trial_started(trial)
    tracker.trial_metrics(trial, 10, {"train/loss": 9.0}, 1_000_001)
    tracker.trial_metrics(trial, 20, {"train/loss": 1.5}, 1_000_002)
    tracker.trial_ended(trial, toy.record(trial))
    tracker.close()
    run = first_run(client)
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((m.step, m.value) for m in history) == [(10, 2.5), (10, 9.0), (20, 1.5)]
