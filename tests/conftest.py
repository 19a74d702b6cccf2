"""Where the tests find the toy system and the real text."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from nlgraft.pipeline.store import ArtifactStore

TESTS = Path(__file__).parent
TOY = TESTS / "integration" / "toy"
SHARED_DATA = TESTS.parent.parent / "shared" / "data"

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")

# Under nohup the tests, and with them all processes that they start, would ignore what they are to end by.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Otherwise each of the hundred processes that the tests start would compile all sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    """One store for all tests of a file: they share stages as the trials of a study do."""
    return ArtifactStore.open(str(tmp_path_factory.mktemp("store")))


@pytest.fixture
def toy_on_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make ``sweep_toy`` importable here and in the processes that this one starts."""
    monkeypatch.syspath_prepend(str(TOY))
    path = os.pathsep.join([str(TOY), str(TESTS.parent / "platform"), str(TESTS.parent)])
    monkeypatch.setenv("PYTHONPATH", path)
    sys.modules.pop("sweep_toy", None)
    return TOY


@pytest.fixture
def toy_document(tmp_path: Path, toy_on_path: Path) -> dict[str, Any]:
    """A study of the toy system: two cells, two seeds."""
    return {
        "name": "toy",
        "system": "sweep_toy",
        "base": {"log": str(tmp_path / "log"), "steps": 3},
        "factors": {"gain": {"target": "gain", "levels": [0.0, 1.0], "baseline": 0.0}},
        "objective": {"metric": "dev/score", "direction": "maximize"},
        "seeds": [1, 2],
        "storage": {"path": str(tmp_path / "store")},
    }


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """Real parallel text; tests that need it say when it is missing."""
    root = Path(os.environ.get("NLGRAFT_DATA", SHARED_DATA)) / "multi30k"
    if not root.is_dir():
        pytest.skip(
            f"real text is missing: set NLGRAFT_DATA to the directory above multi30k (looked at {root})"
        )
    return root
