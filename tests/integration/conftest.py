"""Studies of the integration tests begin with a database that has MLflow's schema."""

import shutil

import pytest


@pytest.fixture
def toy_document(toy_document, tmp_path, empty_database):
    (tmp_path / "store").mkdir()
    shutil.copy(empty_database, tmp_path / "store" / "mlflow.db")
    return toy_document
