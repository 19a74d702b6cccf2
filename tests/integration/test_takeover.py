"""Two attempts at one study overlap: the older is stopped for longer than its lease, then woken."""

import json
import os
import signal
import time

import pytest

from nlgraft import Study, api
from tests.commands import json_of, write_study
from tests.integration.test_command_line import start, wait_for
from tests.processes import patient, wait_until
from tests.small_studies import SHARE


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("sleep_s", [0, pytest.param(75, marks=pytest.mark.slow)])
def test_the_older_attempt_writes_nothing_when_it_wakes(toy_document, tmp_path, sleep_s, request):
    hold = tmp_path / "hold"
    hold.touch()
    toy_document["base"] |= {"hold": str(hold)}
    toy_document["search"] = {
        "sampler": {"name": "random", "seed": 1},
        "space": {"noise": SHARE},
        "trials": 2,
    }
    study_file = write_study(tmp_path / "toy.yaml", toy_document)
    older = start("run", study_file)
    request.addfinalizer(older.kill)  # should the test end while it is stopped
    wait_for(tmp_path / "log", "training")
    os.kill(older.pid, signal.SIGSTOP)
    [lock] = (tmp_path / "store" / "leases").glob("study-*.json")
    if sleep_s:
        time.sleep(sleep_s)
    else:  # a lease's age is that of its file
        os.utime(lock, (time.time() - 75, time.time() - 75))
    token = json.loads(lock.read_text())["token"]
    newer = api.launch(Study.from_yaml(study_file), wait=False)
    wait_until(lambda: json.loads(lock.read_text())["token"] != token)
    hold.unlink()  # the workers of both go on; those of the older one can publish nothing
    result = newer.result(timeout_s=patient(240)).to_json()
    verified = json_of("verify", study_file, "--json")

    os.kill(older.pid, signal.SIGCONT)
    _, err = older.communicate(timeout=patient(90))
    assert older.returncode == 4, err
    assert "another driver has taken over toy" in err
    assert "Traceback" not in err
    assert json_of("verify", study_file, "--json") == verified
    assert json_of("report", study_file, "--format", "json")["cells"] == result["cells"]
