"""The toy stages must be importable here and in processes that a test starts."""

import os
import sys
from pathlib import Path

import pytest

from nlgraft.pipeline.store import ArtifactStore

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE))


@pytest.fixture(autouse=True)
def stages_on_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(ROOT / "platform")]))


@pytest.fixture
def store(tmp_path):
    return ArtifactStore.open(tmp_path / "store")
