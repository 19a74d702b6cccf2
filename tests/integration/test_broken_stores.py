"""`nlgraft run` on stores that are full, read-only or not ours: a sentence, and no failed trial."""

import json
import subprocess
import sys

import pytest

from tests.commands import write_study

# A mount namespace of the test's own: other processes do not see what is mounted.
UNSHARE = ["unshare", "--map-root-user", "--mount", "bash", "-euc"]

FILL_UP = """
mount -t tmpfs -o size=16m tmpfs store
run() { "$@" > "$name.out" 2> "$name.err" && echo 0 > "$name.code" || echo $? > "$name.code"; }
touch hold
name=full run "$@" &
until grep -qs training log; do sleep 0.1; done
cat /dev/zero > store/filler 2> filler.err || true
rm hold
wait
cat store/records/trials/*.json > full.records || true
rm store/filler
name=later run "$@"
"""
READ_ONLY = 'mount -t tmpfs -o ro tmpfs store; "$@"'

pytestmark = pytest.mark.slow


@pytest.fixture
def command(toy_document, tmp_path):
    """The command that runs a study whose store is `store` below the test's directory."""
    mounted = subprocess.run([*UNSHARE, "mount -t tmpfs tmpfs store"], cwd=tmp_path, check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine lets no user mount a file system")
    toy_document["base"] |= {"hold": str(tmp_path / "hold"), "num_bytes": 100_000}
    study = write_study(tmp_path / "toy.json", toy_document)
    return [sys.executable, "-m", "nlgraft", "run", str(study), "--json"]


def test_a_store_that_fills_up_ends_the_run_and_fails_no_trial(command, tmp_path):
    subprocess.run([*UNSHARE, FILL_UP, "bash", *command], cwd=tmp_path, check=True, timeout=280)
    stderr = (tmp_path / "full.err").read_text()
    assert (tmp_path / "full.code").read_text() == "1\n", stderr
    assert "Traceback" not in stderr
    assert "Free space there, or name another store" in stderr.splitlines()[-1]
    assert "killed    baseline, seed 1: disk full at" in stderr
    assert "failed " not in stderr
    assert '"state": "failed"' not in (tmp_path / "full.records").read_text()
    assert (tmp_path / "later.code").read_text() == "0\n", (tmp_path / "later.err").read_text()
    later = json.loads((tmp_path / "later.out").read_text().splitlines()[-1])
    assert later["trials"] == {"run": 4, "reused": 0, "failed": 0}


def test_a_read_only_store_is_refused_before_anything_starts(command, tmp_path):
    ran = subprocess.run(
        [*UNSHARE, READ_ONLY, "bash", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "Read-only file system. Mount it writable, or name another store" in ran.stderr.splitlines()[-1]
    assert "starting Ray" not in ran.stderr
