"""Sweeps on a real local Ray: sharing, reuse, stopping, failure, early stopping, lost workers."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import Any, cast

import optuna
import pytest
import ray
from ray.util import placement_group, placement_group_table, remove_placement_group

import nlgraft
from nlgraft import api
from nlgraft.basics import pacing
from nlgraft.basics.errors import ClusterError, StoreError
from nlgraft.execution import sweep
from nlgraft.execution.cluster import WorkerGroup, local_capacity
from nlgraft.execution.events import Driver, LookTaken, Notice, TrialEnded, TrialStarted
from nlgraft.execution.sweep import run_sweep
from nlgraft.execution.sweep_board import SweepBoard
from nlgraft.execution.trainable import TrialSpec, TuneReporter
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.stage import KillReason, NullReporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore, StorePlace
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Resources
from nlgraft.study.public import Study
from tests.commands import json_of, write_study
from tests.integration.test_command_line import wait_for
from tests.processes import descendants, patient, wait_until
from tests.small_studies import SHARE


@pytest.fixture(autouse=True)
def no_place_is_kept(ray_cluster):
    """However a sweep ends, its placement groups are released and its board is gone."""
    yield

    def is_free():
        boards = [name for name in descendants(os.getpid()).values() if name.startswith("ray::SweepBoard")]
        is_placed = any(group["state"] != "REMOVED" for group in placement_group_table().values())
        has_all = ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"]
        return not boards and not is_placed and has_all

    wait_until(is_free, timeout_s=30, pause_s=0.5)


class Sweep:
    """One sweep of a study, with its events."""

    def __init__(self, document):
        self.study = Study.from_dict(document)
        self.store = ArtifactStore.open(self.study.storage.path)
        self.events = []
        self.outcome = run_sweep(self.study, self.store, cells(self.study), Driver(self.events.append))

    def records(self):
        return {event.trial.name: event.record for event in self.events if isinstance(event, TrialEnded)}


def log_of(tmp_path):
    return [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]


@pytest.mark.skipif(local_capacity()["CPU"] < 2, reason="one trial at a time")
def test_trials_start_side_by_side_and_not_one_after_another(toy_document, tmp_path):
    """Else the last of many workers starts only when all the others have imported their modules."""
    toy_document["factors"]["gain"]["target"] = "upstream"  # no shared stage to wait for
    toy_document["factors"]["gain"] |= {"levels": [0, 1], "baseline": 0}
    toy_document["seeds"] = [1]
    has_begun = []

    def observe(event):
        if isinstance(event, TrialStarted):
            has_begun.append((tmp_path / "log").exists())

    study = Study.from_dict(toy_document)
    run_sweep(study, ArtifactStore.open(study.storage.path), cells(study), Driver(observe))
    assert has_begun == [False, False]


def test_a_handle_tells_events_and_stops_a_study_which_goes_on_later(toy_document, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()  # nothing ends before it is stopped, however slow that is
    toy_document["base"] |= {"hold": str(hold)}
    study = Study.from_dict(toy_document)
    handle = nlgraft.launch(study, wait=False)
    assert "toy" in repr(handle)
    assert ".result()" in repr(handle)
    for event in handle.events():
        if isinstance(event, TrialStarted):
            handle.stop()
    stopped = handle.result(timeout_s=60)
    assert {trial.state for trial in stopped.trials} <= {"killed", "planned"}
    assert stopped.invocation.stop_reason == "stopped by Handle.stop"
    hold.unlink()
    later = nlgraft.launch(study, wait=False)
    ended = [event.record.state for event in later.events() if isinstance(event, TrialEnded)]
    assert ended == ["finished"] * 4
    assert list(later.events()) == [], "the events are told once"
    assert later.status()["counts"]["finished"] == 4
    result = later.result(timeout_s=60)
    assert len(result.frame()) == 4
    comparison = result.compare("gain=1.0", "baseline", metric="test/score")
    assert comparison.difference == pytest.approx(10.0)
    assert nlgraft.load(study).to_json()["cells"] == result.to_json()["cells"]
    fewer = nlgraft.launch(study, only=["gain=0.0"])
    assert fewer.invocation.num_reused == 2


def test_failures_are_recorded_the_others_finish_and_the_command_ends_with_1(toy_document, tmp_path):
    toy_document["factors"] = {
        "behaviour": {"target": "behaviour", "levels": ["good", "nan", "raise", "exit"], "baseline": "good"}
    }
    toy_document |= {"seeds": [1], "resources": {"max_failures": 1}}
    file = write_study(tmp_path / "toy.yaml", toy_document)
    result = json_of("run", file, "--json", code=1)
    assert [cell["state"] for cell in result["cells"]] == ["finished", "failed", "failed", "failed"]
    status = json_of("status", file, "--json")
    assert status["counts"]["failed"] == 3
    reasons = [cell["reasons"] for cell in status["cells"][1:]]
    for [reason], part in zip(reasons, ("nan", "this arm cannot work", "process died"), strict=True):
        assert part in reason


def test_asha_stops_trials_cooperatively_and_optuna_hears_of_it(toy_document, tmp_path):
    del toy_document["factors"]
    toy_document["base"]["steps"] = 9
    toy_document["seeds"] = [1]
    toy_document["search"] = {
        "sampler": {"name": "random", "seed": 1},
        "trial_scheduler": {"name": "asha", "grace_steps": 1, "reduction_factor": 2},
        "space": {"gain": SHARE},
        "trials": 6,
    }
    sweep = Sweep(toy_document)
    states = [record.state for name, record in sweep.records().items() if "search" in name]
    assert len(states) == 6
    assert states.count("stopped") >= 1
    assert states.count("finished") >= 1
    stopped = next(record for record in sweep.records().values() if record.state == "stopped")
    assert "trial scheduler" in stopped.reason
    assert any(stage["decision"] == "stopped" for stage in stopped.stages)
    assert not list((tmp_path / "store").glob("checkpoints/*/*")), "nobody resumes a stopped trial"
    storage = f"sqlite:///{tmp_path / 'store' / 'optuna.db'}"
    [summary] = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=summary.study_name, storage=storage).trials
    assert [trial.state.name for trial in trials].count("PRUNED") == states.count("stopped")
    assert not [trial for trial in trials if trial.state.name == "RUNNING"]


@pytest.mark.slow
def test_undecided_cells_get_the_seeds_of_the_next_look(toy_document, tmp_path):
    toy_document["factors"] = {
        "arm": {
            "levels": {
                "base": {"gain": 0.0},
                "clear": {"gain": 1.0, "noise": 0.01},
                "noisy": {"gain": 0.1, "noise": 0.5},
            },
            "baseline": "base",
        }
    }
    toy_document |= {"seeds": [1, 2, 3, 4, 5], "sequential": {"looks": [3, 5]}}
    study = Study.from_dict(toy_document)
    events = []
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    result = nlgraft.launch(study, tracking_uri=uri, on_event=events.append)
    looks = [event for event in events if isinstance(event, LookTaken)]
    assert [look.num_new for look in looks] == [4]
    stops = {label: (stop.num_seeds, stop.stopped_because) for label, stop in result.stops.items()}
    assert stops == {"baseline": (5, ""), "arm=clear": (3, "decided"), "arm=noisy": (5, "")}
    assert (result.invocation.num_run, log_of(tmp_path).count("training")) == (13, 13)
    assert result.compare("noisy").notes[-1] == "looks taken: 3, 5"
    assert [len(cell.measured("test/score")) for cell in result.cells] == [5, 3, 5]
    again = nlgraft.launch(study, tracking_uri=uri)
    assert (again.invocation.num_run, again.invocation.num_reused) == (0, 13)
    assert again.stops == result.stops


def test_a_lost_worker_resumes_at_its_last_checkpoint(toy_document, tmp_path):
    toy_document["factors"] = {}
    toy_document["seeds"] = [1]
    toy_document["base"] |= {"steps": 40, "pause_s": 0.3}  # still training when a busy machine kills it

    def kill_when_training():
        [training] = wait_for(tmp_path / "log", "training")
        time.sleep(1.2)
        os.kill(int(training.split()[2]), signal.SIGKILL)

    killer = threading.Thread(target=kill_when_training)
    killer.start()
    sweep = Sweep(toy_document)
    killer.join()
    assert [record.state for record in sweep.records().values()] == ["finished"]
    assert log_of(tmp_path).count("training") == 2
    assert log_of(tmp_path).count("upstream") == 1


def test_a_worker_that_is_told_to_end_saves_and_its_trial_goes_on_elsewhere(toy_document, tmp_path):
    toy_document |= {"factors": {}, "seeds": [1], "resources": {"max_failures": 0}}
    undisturbed = api.run_one(Study.from_dict(toy_document), "baseline", None, NullReporter())
    hold = tmp_path / "hold"
    toy_document |= {"name": "signalled", "storage": {"path": str(tmp_path / "other")}}
    toy_document["base"] |= {"hold": str(hold), "log": str(tmp_path / "log_of_signalled")}
    hold.touch()

    def signal_and_wait():
        log = tmp_path / "log_of_signalled"
        [first] = wait_for(log, "training")
        os.kill(int(first.split()[2]), signal.SIGTERM)
        with suppress(AssertionError):
            wait_until(lambda: log.read_text().count("training") == 2, 120)
        hold.unlink()

    thread = threading.Thread(target=signal_and_wait)
    thread.start()
    result = nlgraft.launch(Study.from_dict(toy_document))
    thread.join(patient(30))
    (trial,) = result.trials
    assert (trial.state, trial.record.num_preemptions, trial.record.attempt) == ("finished", 1, 2)
    assert trial.record.metrics == undisturbed.metrics


def test_processes_that_a_worker_starts_can_be_ended_by_a_signal():
    def end_a_child():
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        try:
            return child.wait(timeout=20)
        finally:
            child.kill()

    assert ray.get(ray.remote(end_a_child).remote()) == -signal.SIGTERM


def test_a_trial_that_cannot_reach_its_driver_is_killed_and_not_failed(toy_document):
    group = WorkerGroup(Resources(max_failures=0), "")
    stage = Stage(name="training", run="sweep_toy:run_training")
    spec = TrialSpec(StageGraph(stage), {}, StorePlace(""), "batch-1", "a", group, "", None)
    board = cast(Any, ray.remote(num_cpus=0)(SweepBoard)).remote()
    board.assign.remote("batch-1", ["a", "b", "c"])
    assert ray.get(board.begin.remote("batch-1", "node"))[0] == "a"
    reporter = TuneReporter(spec, board)
    assert reporter.should_stop() is None
    ray.get(board.request_stop.remote("batch-1", KillReason("the sweep ends")))
    assert isinstance(reporter.should_stop(), KillReason), "the kind of a request survives the board"
    ray.kill(board)
    # ray.kill returns before the process has ended, which answers as before until then.
    wait_until(lambda: "lost contact with the driver" in str(reporter.should_stop()))
    assert isinstance(reporter.should_stop(), KillReason)


def test_an_error_at_the_end_of_a_trial_ends_the_sweep_and_is_not_the_trial_s_own(toy_document, monkeypatch):
    """Tune only logs it and runs the trial again: a sweep whose store was full went on for ever."""
    monkeypatch.setattr(TrialQueue, "end", lambda *_: raising(StoreError("No space left on device")))
    toy_document["factors"] = {}
    toy_document["seeds"] = [1]
    study = Study.from_dict(toy_document)
    store = ArtifactStore.open(study.storage.path)
    events = []
    with pytest.raises(StoreError, match="No space left"):
        run_sweep(study, store, cells(study), Driver(events.append))
    assert [event.record.state for event in events if isinstance(event, TrialEnded)] == ["killed"]


def raising(error):
    raise error


@pytest.fixture
def two_workers(toy_document):
    toy_document["factors"] = {}
    toy_document["seeds"] = [1]
    toy_document["base"]["steps"] = 5
    toy_document["resources"] = {"workers": 2, "max_failures": 1}
    return toy_document


def test_a_lost_worker_of_a_group_is_replaced_and_an_error_in_one_is_the_stage_s_own(two_workers, tmp_path):
    """When one is lost the collective of the survivor fails as well; that is no error of the stage."""
    arms = {"lost": {"num_losses": 1}, "raises": {"behaviour": "raise"}}
    two_workers["factors"] = {"arm": {"levels": arms, "baseline": "lost"}}
    records = Sweep(two_workers).records()
    lost, raises = records["baseline, seed 1"], records["arm=raises, seed 1"]
    assert lost.state == "finished", lost.reason
    assert lost.metrics == pytest.approx({"dev/score": 5 + 0.1, "test/score": 5 + 0.1 + 0.5})
    assert raises.state == "failed"
    assert "this arm cannot work" in raises.reason
    counts = [log_of(tmp_path).count(event) for event in ("lost", "training", "of-2")]
    assert counts == [1, 3, 3], "the error is not tried again"


@pytest.mark.slow
def test_workers_lost_more_often_than_allowed_fail_the_trial(two_workers, tmp_path):
    two_workers["base"]["num_losses"] = 9
    [record] = Sweep(two_workers).records().values()
    assert (record.state, log_of(tmp_path).count("lost")) == ("failed", 2)
    assert "a worker was lost 2 times, resources.max_failures allows 1" in record.reason


def test_a_sweep_without_a_place_says_so_and_ends_when_it_has_waited_enough(toy_document, monkeypatch):
    monkeypatch.setattr(pacing, "_TELL_PAUSE_S", 2.0)
    monkeypatch.setattr(sweep, "_LOOK_PAUSE_S", 0.5)
    num_cpus = int(ray.cluster_resources()["CPU"])
    others = placement_group([{"CPU": 1}] * num_cpus)
    ray.get(others.ready())
    study = Study.from_dict(toy_document)
    store = ArtifactStore.open(study.storage.path)
    events = []
    try:
        with pytest.raises(ClusterError, match=r"no trial could run for \d+ s \(--wait-timeout\)") as raised:
            run_sweep(study, store, cells(study), Driver(events.append, wait_timeout_s=5.0))
    finally:
        remove_placement_group(others)
    assert "without a place on the cluster: each worker needs 1 CPU, free are 0 CPU in all" in str(
        raised.value
    )
    lines = [event.message for event in events if isinstance(event, Notice)]
    assert any(line.startswith("waiting for ") for line in lines), lines
    states = {event.record.state for event in events if isinstance(event, TrialEnded)}
    assert states == {"killed"}, "they run again"
