"""Why a stage runs, in words."""

import json
import subprocess
from pathlib import Path

import pytest

from nlgraft.pipeline.integrity import FileEntry
from nlgraft.pipeline.manifest import Manifest, describe_artifact, explain_miss
from nlgraft.pipeline.stage import Stage


def stage(**changes):
    base = {
        "name": "training",
        "run": "somewhere:run",
        "config": {"train": {"peak_lr": 0.001, "steps": 5}, "ids": [1, 2]},
        "inputs": {"upstream": Stage(name="upstream", run="somewhere:run")},
        "seed": 1,
    }
    return Stage(**{**base, **changes})


def manifest(of):
    files = {"x.txt": FileEntry(sha256="0" * 64, bytes=3)}
    return describe_artifact(of, files, {"started_at": 1.0, "duration_s": 2.0, "reason": "missing"})


OTHER_LR = {"train": {"peak_lr": 0.002, "steps": 5}, "ids": [1, 2]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": OTHER_LR}, "changed field train.peak_lr (0.001 -> 0.002)"),
        ({"seed": 2}, "changed seed (1 -> 2)"),
        ({"seed": None}, "changed seed (1 -> None)"),
        ({"version": 2}, "new version 2 (was 1)"),
        ({"inputs": {"upstream": Stage(name="upstream", run="a:b", version=2)}}, "changed input upstream"),
        ({"inputs": {}}, "dropped input upstream"),
        ({"config": {"train": {"steps": 5.0}, "ids": [1, 2]}},
         "changed field train.peak_lr (0.001 -> absent), changed field train.steps (5 -> 5.0)"),
        ({"config": {"train": {"peak_lr": 0.001, "steps": 5}, "ids": [1, 3]}},
         "changed field ids ([1,2] -> [1,3])"),
        ({"config": OTHER_LR, "seed": 3},
         "changed field train.peak_lr (0.001 -> 0.002), changed seed (1 -> 3)"),
    ],
)  # fmt: skip
def test_what_changed(changes, reason):
    stored = stage()
    assert explain_miss(stage(**changes), [manifest(stored)]) == f"{reason} since {stored.fingerprint[:12]}"


def test_against_the_nearest():
    near, far = stage(seed=2), stage(seed=3, config={})
    reason = explain_miss(stage(), [manifest(far), manifest(near), manifest(stage(run="another:kind"))])
    assert reason == f"changed seed (2 -> 1) since {near.fingerprint[:12]}"


def test_records_the_surroundings():
    made = manifest(stage())
    assert made.bytes == 3
    assert made.inputs == {"upstream": stage().inputs["upstream"].fingerprint}
    assert made.host
    assert {"python", "torch"} <= made.versions.keys()
    assert made.ended_at == 3.0
    assert json.loads(made.encode())["schema"] == 1
    assert Manifest.decode(made.encode()) == made


def test_code_state_is_recorded_in_a_checkout():
    """Where this test runs in a checkout, its commit must be named."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        pytest.skip("no checkout")
    command = ["git", "-C", root, "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True)
    git = manifest(stage()).git
    assert git["commit"] == head.stdout.strip()
    assert isinstance(git["is_dirty"], bool)


def test_keys_of_a_later_version_are_dropped():
    made = manifest(stage())
    assert Manifest.decode(made.encode().replace(b'"schema"', b'"colour": "red", "schema"')) == made
