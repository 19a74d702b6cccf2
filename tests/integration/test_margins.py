"""The three verdicts and the settings that mattered, from a study file to the terminal, JSON and MLflow."""

import pytest
from mlflow import MlflowClient

from tests.commands import json_of, nlgraft, write_study


@pytest.mark.usefixtures("ray_cluster")
def test_a_search_with_a_margin_from_file_to_mlflow(toy_document, tmp_path):
    levels = {"base": {"noise": 0.0}, "same": {"gain": -0.005, "noise": 0.02}}
    toy_document |= {
        "factors": {"arm": {"levels": levels, "baseline": "base"}},
        "seeds": [1, 2, 3, 4],
        "analysis": {"margin": {"test/score": 0.2}},
        "search": {
            "sampler": {"name": "random", "seed": 1},
            "space": {
                "steps": {"type": "int", "low": 1, "high": 8},
                "num_bytes": {"type": "int", "low": 0, "high": 9},
            },
            "trials": 10,
        },
    }
    del toy_document["base"]["steps"]
    study = write_study(tmp_path / "toy.yaml", toy_document)
    shown = " ".join(nlgraft("run", study).stdout.split())
    assert "equal to the baseline within the margin of 0.2 points (arm=same)" in shown
    assert "Which setting mattered for dev/score in these trials: baseline: steps" in shown

    document = json_of("report", study, "--format", "json")
    baseline, same = document["cells"]
    assert same["comparison"]["test/score"]["verdict"] == "equal within 0.2 points"
    settings = baseline["search"]["settings"]
    assert [row["setting"] for row in settings["settings"]] == ["steps", "num_bytes"]
    assert settings["trials"] == 10
    assert "verdict" in nlgraft("report", study).stdout.replace("|", " ").split()

    client = MlflowClient(f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("toy")
    cell_runs = client.search_runs([experiment.experiment_id], "tags.`nlgraft.kind` = 'cell'")
    tags = {run.data.tags["nlgraft.cell"]: run.data.tags for run in cell_runs}
    assert tags["arm=same"]["nlgraft.verdict"] == "equal within 0.2 points"
    assert tags["baseline"]["nlgraft.mattered"].startswith("steps ")
    assert "nlgraft.verdict" not in tags["baseline"]
