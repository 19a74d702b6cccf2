"""Scripts on Ray: interrupted by Ctrl-C and by a kill, resumed, stopped early, compared."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TRIAL_RECORD
from tests.commands import write_study
from tests.processes import wait_until
from tests.small_studies import SHARE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCRIPT = """\
import csv, json, os, random, sys, time
rate, seed, notes = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
draw = random.Random(seed)
def note(word):
    with open(notes, "a") as file:
        print(word, rate, seed, os.getpid(), file=file)
note("begun")
with open("out.jsonl", "w") as file:
    for step in range(1, 9):
        time.sleep(0.4)
        print(json.dumps({"step": step, "dev/loss": rate + 1 / step}), file=file, flush=True)
with open("items.csv", "w") as file:
    out = csv.writer(file)
    out.writerow(["item", "metric", "value"])
    for split in ("dev", "test"):
        for item in range(200):
            hard = random.Random(item).random()
            out.writerow([f"{split}{item}", f"{split}/item.hit", int(draw.gauss(0.8 - rate, 0.2) > hard)])
note("ended")
"""


def document(place):
    (place / "code").mkdir()
    (place / "code" / "run.py").write_text(SCRIPT)
    metrics = {name: {"direction": "maximize", "unit": "share"} for name in ("dev/item.hit", "test/item.hit")}
    return {
        "name": "scripts",
        "system": "trainables.command",
        "data": {"directory": "code"},
        "base": {
            "declare": {"rate": {"type": "float", "default": 0.0, "min": 0, "max": 1}},
            "stages": {
                "train": {
                    "command": f"python run.py {{rate}} {{seed}} {place}/notes",
                    "metrics": ["out.jsonl", "items.csv"],
                }
            },
            "metrics": {"dev/loss": {"direction": "minimize", "unit": "nats"}, **metrics},
        },
        "objective": {"metric": "dev/item.hit", "direction": "maximize"},
        "seeds": [1, 2, 3],
        "resources": {"max_concurrent": 2},
        "storage": {"path": "store"},
    }


@pytest.fixture
def place(tmp_path, empty_database):
    (tmp_path / "store").mkdir()
    shutil.copy(empty_database, tmp_path / "store" / "mlflow.db")
    return tmp_path


def start(place):
    return subprocess.Popen(
        [sys.executable, "-m", "nlgraft", "run", "study.json"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def notes(place, word):
    path = place / "notes"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(rate, seed, int(pid)) for kind, rate, seed, pid in lines if kind == word]


def records(place):
    return [*ArtifactStore.open(place / "store").records.list("trials", TRIAL_RECORD).values()]


def test_a_study_of_a_script_goes_on_after_ctrl_c_and_after_a_kill(place):
    study = document(place)
    study["factors"] = {"rate": {"target": "settings.rate", "levels": [0.0, 0.3], "baseline": 0.0}}
    write_study(place / "study.json", study)
    for signum in (signal.SIGINT, signal.SIGKILL):
        before, run = len(notes(place, "begun")), start(place)
        # Two run at once, so when a third begins the result of another is stored.
        wait_until(lambda before=before: len(notes(place, "begun")) >= before + 3, 300)  # type: ignore[misc]
        os.kill(run.pid, signum)
        run.communicate()
        assert run.returncode != 0
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for *_, pid in notes(place, "begun")), 60)
    finished = [record.fingerprint for record in records(place) if record.state == "finished"]
    num_begun, run = len(notes(place, "begun")), start(place)
    shown, _ = run.communicate()
    assert run.returncode == 0, shown
    assert len(finished) >= 2
    assert len(notes(place, "begun")) - num_begun <= 6 - len(finished)
    assert "Intervals cover variation over seeds and segments." in shown
    assert "1 cell worse than the baseline (rate=0.3)" in shown


def test_a_search_stops_poor_trials_by_what_the_script_reports(place):
    study = document(place)
    study["seeds"] = [1]
    study["search"] = {
        "trials": 6,
        "sampler": {"name": "random"},
        "trial_scheduler": {"metric": "dev/loss", "grace_steps": 2, "max_steps": 8, "reduction_factor": 2},
        "space": {"settings.rate": SHARE},
    }
    write_study(place / "study.json", study)
    run = start(place)
    shown, _ = run.communicate()
    assert run.returncode == 0, shown
    states = [record.state for record in records(place)]
    assert "stopped" in states
    assert "failed" not in states
    assert len(notes(place, "ended")) < len(notes(place, "begun"))
