"""Studies of the integration tests begin with a database that has MLflow's schema."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def toy_document(toy_document: dict[str, Any], tmp_path: Path, empty_database: Path) -> dict[str, Any]:
    (tmp_path / "store").mkdir()
    shutil.copy(empty_database, tmp_path / "store" / "mlflow.db")
    return toy_document
