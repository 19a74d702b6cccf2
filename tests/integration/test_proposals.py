"""`nlgraft try` on a real Ray: a driver that is killed, the same command again, its answer as JSON."""

import json
import signal

import pytest

from nlgraft.analysis.policy.proposals import stream_level
from tests.commands import json_of, nlgraft, write_study
from tests.integration.test_command_line import start
from tests.processes import wait_until


@pytest.mark.slow
def test_two_propose_at_once_and_a_killed_proposal_goes_on_at_its_level(toy_document, tmp_path):
    toy_document["base"] |= {"hold": str(tmp_path / "hold")}
    (tmp_path / "hold").touch()
    path, store = write_study(tmp_path / "toy.yaml", toy_document), toy_document["storage"]["path"]
    killed = start("try", path, "gain=1.0")
    for line in killed.stderr:
        if line.startswith("started"):
            break
    refused = nlgraft("try", path, "gain=1.0", code=4)
    assert "is being run by" in refused.stderr
    second = start("try", path, "gain=2.0", "--json")
    wait_until(lambda: len(json_of("ledger", "--json", "--storage", store)["streams"][0]["proposals"]) == 2)
    killed.send_signal(signal.SIGTERM)
    _, err = killed.communicate(timeout=120)
    assert killed.returncode == 143, err
    assert "the same command again to resume" in err
    (tmp_path / "hold").unlink()
    process = start("try", path, "gain=1.0", "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    answer = json.loads(out)
    assert (answer["decision"], answer["number"]) == ("KEEP", 1)
    assert answer["level"] == stream_level(0, 0, 0.05)
    out, err = second.communicate(timeout=240)
    assert second.returncode == 0, err
    other = json.loads(out)
    assert (other["decision"], other["number"], other["against"]) == ("KEEP", 2, "baseline")
    assert other["level"] == stream_level(1, 0, 0.05)
    assert "started" in err
