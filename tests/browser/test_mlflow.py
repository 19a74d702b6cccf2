"""MLflow's own pages in a browser: what a person sees of a study first."""

import io
import re

import pytest

import nlgraft
from nlgraft import api
from nlgraft.commands.progress import LineReporter
from tests.pages import CHROMIUM, browse
from tests.servers import mlflow_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install chromium or google-chrome"),
]


@pytest.fixture
def experiment(toy_document, tmp_path):
    """The address of an experiment with two cells of two seeds, on a server of MLflow."""
    study = nlgraft.Study.from_dict(toy_document)
    for cell in ("gain=0.0", "gain=1.0"):
        for seed in study.seeds:
            api.run_one(study, cell, seed, LineReporter(io.StringIO()))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    nlgraft.launch(study, tracking_uri=uri)
    with mlflow_server(uri, tmp_path) as address:
        yield f"{address}/#/experiments/1/runs"


def text_of(page, profile):
    """Open a page in headless Chromium and return its text."""
    document = browse(page, profile, "--window-size=1600,900")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", document))


def test_the_list_of_runs_shows_the_cells_and_their_main_metric_first(experiment, tmp_path):
    text = text_of(experiment, tmp_path / "first")
    baseline, cell = text.index("baseline 3.65 ± 0.07"), text.index("gain=1.0 13.65 ± 0.07")
    assert baseline < cell
    assert "seed 1" not in text, "trials lie below their cells"


def test_the_view_of_cells_shows_the_columns_of_the_comparison(experiment, tmp_path):
    text = text_of(f"{experiment}?viewStateShareKey=cells", tmp_path / "view")
    for column in ("test/score.mean", "test/score.difference"):
        assert column in text
    assert "13.65" in text.replace("13.65 ±", "")
