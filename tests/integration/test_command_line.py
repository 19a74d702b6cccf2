"""The command line on a real Ray and a real MLflow store: exit codes, crashes, locks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nlgraft.execution import sweep
from tests.commands import json_of, nlgraft, write_study
from tests.processes import descendants, listening, patient, wait_until


@pytest.fixture
def study_file(toy_document, tmp_path):
    return write_study(tmp_path / "toy.yaml", toy_document)


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "nlgraft", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )


def finish(process, timeout_s):
    """Output of a process that ends in time; one that does not tells where each of its threads is."""
    try:
        return process.communicate(timeout=patient(timeout_s))
    except subprocess.TimeoutExpired:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        process.send_signal(signal.SIGABRT)
        _, err = process.communicate(timeout=20)
        pytest.fail(f"in state {state} after {timeout_s:g} s:\n{err}")


LOOPBACK_IN_IPV6 = "0000000000000000FFFF00000100007F"


def mlflow_runs(database):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("toy")
    return list(client.search_runs([experiment.experiment_id]))


def mlflow_statuses(database):
    return {run.info.status for run in mlflow_runs(database)}


def without_times(document):
    """A result without what may differ between two runs: places and counts of reuse."""
    kept = {"study", "fingerprint", "baseline", "cells", "claims"}
    return {key: value for key, value in document.items() if key in kept}


def dev_means(out):
    """Means of dev/score over the seeds of each cell, which the toy's settings give by hand."""
    return [cell["metrics"]["dev/score"]["mean"] for cell in json.loads(out.splitlines()[-1])["cells"]]


def wait_for(path, word, timeout_s=90):
    """Wait for lines of a file that begin with a word."""

    def matching():
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(word)]

    wait_until(matching, timeout_s, pause_s=0.1)
    return matching()


@pytest.mark.usefixtures("ray_cluster")
def test_run_status_report_and_reuse(study_file, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_BATCHES_PER_TUNER", 3)  # the fourth is a second Tuner's
    first = nlgraft("run", study_file, "--json")
    result = json.loads(first.stdout)
    assert result["trials"] == {"run": 4, "reused": 0, "failed": 0}
    messages = first.stderr.splitlines()
    assert messages[0] == "checking the data"
    assert messages[1].startswith("opening MLflow at sqlite:///")
    assert messages[2:4] == ["4 trials planned, 0 finished before, 2 at once", "starting Ray on this machine"]
    assert [cell["state"] for cell in result["cells"]] == ["finished", "finished"]
    assert result["cells"][1]["metrics"]["test/score"]["n"] == 2
    events = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert (events.count("upstream"), events.count("training")) == (1, 4)
    second = json_of("run", study_file, "--json")
    assert second["trials"] == {"run": 0, "reused": 4, "failed": 0}
    assert without_times(second) == without_times(result)
    counts = {"planned": 4, "waiting": 0, "running": 0, "finished": 4, "stopped": 0, "failed": 0}
    assert json_of("status", study_file, "--json")["counts"] == counts
    assert json_of("report", study_file, "--format", "json")["cells"] == result["cells"]
    assert Path(result["report_dir"], "report.html").is_file()
    plan = json_of("plan", study_file, "--json")
    assert plan["stages"] == {"planned": 12, "distinct": 9, "finished": 9}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_registered_study_says_what_deviates_until_it_ran_as_registered(toy_document, tmp_path):
    toy_document["factors"]["gain"]["levels"] = [0.0, 1.0, 2.0]
    file = write_study(tmp_path / "toy.yaml", toy_document)
    registered = json_of("register", file, "--json")
    part = nlgraft("run", file, "--only", "gain=1.0")
    name = f"{registered['time'][:10]}, {registered['digest'][:12]}"
    assert f"Registered ({name}), before any analysis" in part.stdout, part.stderr
    assert "  trials of gain=2.0: 2 seeds → not run" in part.stdout.splitlines()
    whole = nlgraft("run", file)
    assert f"As registered ({name}), before any analysis of its test segments in this store." in whole.stdout
    edited = nlgraft("report", file, "seeds=[1, 2, 7]")
    assert "Registered as toy" in edited.stdout
    assert "| seeds | 1, 2 | 1, 2, 7 |" in edited.stdout
    runs = mlflow_runs(tmp_path / "store" / "mlflow.db")
    tags = [run.data.tags["nlgraft.registration"] for run in runs if "nlgraft.registration" in run.data.tags]
    assert [tag.partition(" (")[0] for tag in tags] == ["As registered"]


def test_a_trial_says_of_each_stage_why_it_runs_and_what_it_reports(study_file):
    process = start("trial", study_file, "--cell", "gain=1.0")
    out, err = finish(process, 60)
    assert process.returncode == 0, err
    messages = err.splitlines()
    assert [line.split()[1] for line in messages if ": run (" in line] == ["upstream", "training", "scores"]
    assert "training step 3, dev/score 13.1, train/loss 0.3333" in messages
    assert dict(line.split("\t") for line in out.splitlines())["test/score"] == "13.6"


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_killed_driver_loses_nothing(toy_document, tmp_path, signum):
    toy_document["base"] |= {"steps": 6, "pause_s": 0.4}
    study_file = write_study(tmp_path / "toy.yaml", toy_document)
    driver = start("run", study_file)
    wait_for(tmp_path / "log", "training")
    while driver.poll() is None:  # the first of them begins an orderly end, which takes longer than this
        driver.send_signal(signum)
        time.sleep(0.2)
    driver.communicate()
    assert driver.returncode == -signum
    resumed = nlgraft("run", study_file, "--json")
    assert dev_means(resumed.stdout) == pytest.approx([6.15, 16.15], abs=1e-9)
    assert json_of("verify", study_file, "--json")["num_planned"] == 4


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_an_edited_study_reuses_nothing_and_put_back_reuses_all(toy_document, tmp_path):
    studies = [
        write_study(tmp_path / "toy.yaml", toy_document),
        write_study(tmp_path / "edited.yaml", {**toy_document, "base": {**toy_document["base"], "steps": 4}}),
    ]
    runs = []
    for study_file in (*studies, studies[0]):
        ran = nlgraft("run", study_file, "--json")
        counts = json.loads(ran.stdout.splitlines()[-1])["trials"]
        runs.append((counts["run"], counts["reused"], dev_means(ran.stdout)))
        nlgraft("verify", study_file)
    first, edited = (pytest.approx([0.15 + steps, 10.15 + steps], abs=1e-9) for steps in (3, 4))
    assert runs == [(4, 0, first), (4, 0, edited), (0, 4, first)]


def test_a_signal_while_ray_starts_ends_the_driver_without_a_dump(study_file, tmp_path):
    driver = start("run", study_file)
    wait_until(
        lambda: any("gcs_server" in command for command in descendants(driver.pid).values()),
        90,
        process=driver,
    )
    os.kill(driver.pid, signal.SIGHUP)  # its terminal is closed
    _, err = driver.communicate(timeout=patient(60))
    assert driver.returncode == 129, err
    assert err.splitlines()[-1] == "interrupted by SIGHUP; run the same command again to resume"
    assert "***" not in err
    assert "Traceback" not in err
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_ray_that_is_killed_ends_the_driver_with_a_sentence(toy_document, tmp_path, name):
    toy_document["base"] |= {"steps": 200, "pause_s": 0.3}
    driver = start("run", write_study(tmp_path / "toy.yaml", toy_document))
    wait_for(tmp_path / "log", "training")
    commands = descendants(driver.pid).items()
    [pid] = [pid for pid, command in commands if Path(command.split("\0")[0]).name == name]
    os.kill(pid, signal.SIGKILL)
    _, err = driver.communicate(timeout=patient(50))
    assert driver.returncode == 1, err
    assert "lost Ray on this machine" in err
    assert "Run the same command again to resume" in err


def test_a_driver_listens_on_loopback_refuses_others_of_its_study_or_search_and_ends_by_a_signal(
    toy_document, tmp_path
):
    """Two versions of a search share its proposals. One driver for all, since Ray starts for seconds."""
    toy_document["base"] |= {"steps": 200, "pause_s": 0.3}
    toy_document["search"] = {
        "sampler": {"name": "random", "seed": 1},
        "space": {"upstream": {"type": "int", "low": 0, "high": 9}},
        "trials": 2,
    }
    study_file = write_study(tmp_path / "one.yaml", toy_document)
    first = start("run", study_file)
    wait_for(tmp_path / "log", "training")
    addresses = [address for address, _ in listening(first.pid)]
    assert len(addresses) > 3
    assert [address for address in addresses if address not in ("0100007F", LOOPBACK_IN_IPV6)] == []
    second = nlgraft("run", study_file, code=4)
    assert str(first.pid) in second.stderr
    extended = write_study(tmp_path / "two.yaml", {**toy_document, "seeds": [1, 2, 3]})
    third = nlgraft("run", extended, code=4)
    assert "shares a search with this one" in third.stderr
    assert str(first.pid) in third.stderr
    status = json_of("status", study_file, "--json")
    assert status["is_running"]
    assert status["counts"]["running"] >= 1
    # To the whole process group, as `timeout` and batch schedulers send it: Ray's processes are in it.
    os.killpg(first.pid, signal.SIGTERM)
    _, err = finish(first, 60)
    assert first.returncode == 143, err
    assert err.endswith("interrupted by SIGTERM; run the same command again to resume\n")
    records = [json.loads(path.read_text()) for path in tmp_path.glob("store/records/trials/*.json")]
    assert [record["reason"] for record in records if record["state"] != "killed"] == []
    assert records
    assert mlflow_statuses(tmp_path / "store" / "mlflow.db") == {"KILLED"}


def test_what_never_fits_exits_with_3_before_ray_starts(toy_document, tmp_path):
    toy_document["resources"] = {"workers": 3, "gpus_per_worker": 1}
    study_file = write_study(tmp_path / "toy.yaml", toy_document)
    ran = nlgraft("run", study_file, code=3)
    assert "GPU" in ran.stderr
    assert "starting Ray" not in ran.stderr
    nlgraft("plan", study_file, code=3)
