"""A study and its variant side by side: reports, MLflow, and commands that take the variant's name."""

import io
from pathlib import Path

from nlgraft import Study, api
from nlgraft.commands.progress import LineReporter
from tests.commands import json_of, nlgraft, write_study

OVERRIDES = ["steps=4", "seeds=[1]"]


def run(study, tracking_uri):
    """Run a study without Ray: its trials one by one, then the report over them."""
    for cell in ("gain=0.0", "gain=1.0"):
        for seed in study.seeds:
            api.run_one(study, cell, seed, LineReporter(io.StringIO()))
    return api.launch(study, tracking_uri=tracking_uri).to_json()


def test_a_variant_has_a_name_a_report_and_an_experiment_of_its_own(toy_document, tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    plain = Study.from_dict(toy_document)
    variant = Study.from_dict(toy_document, OVERRIDES)
    first = run(plain, uri)
    report = Path(first["report_dir"], "report.md").read_text()
    second = run(variant, uri)

    assert (first["study"], first["experiment"]) == ("toy", "toy")
    assert second["study"] == second["experiment"] == variant.variant != "toy"
    assert second["overrides"] == OVERRIDES
    assert first["report_dir"] != second["report_dir"]
    assert Path(first["report_dir"], "report.md").read_text() == report
    head = Path(second["report_dir"], "report.md").read_text().partition("##")[0]
    assert head.startswith(f"# {variant.variant}\n")
    assert "Variant of `toy` with the overrides `steps=4`, `seeds=[1]`." in head
    page = Path(second["report_dir"], "report.html").read_text()
    assert f"<h1>{variant.variant}</h1>" in page
    assert "<code>seeds=[1]</code>" in page
    assert "% override steps=4\n" in Path(second["report_dir"], "report.tex").read_text()

    store = str(tmp_path / "store")
    for name, planned in (("toy", 4), (variant.variant, 2)):
        status = json_of("status", name, "--storage", store, "--json")
        assert (status["study"], status["counts"]["planned"]) == (name, planned)
        assert status["counts"]["finished"] == planned
    assert nlgraft("report", variant.variant, "--storage", store).stdout.startswith(f"# {variant.variant}\n")

    from mlflow import MlflowClient

    client = MlflowClient(uri)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    studies = {run.info.run_name: run for run in runs if run.data.tags["nlgraft.kind"] == "study"}
    assert set(studies) == {"toy", variant.variant}
    assert studies[variant.variant].data.params["overrides"] == "steps=4 seeds=[1]"
    for run_ in runs:
        name = client.get_experiment(run_.info.experiment_id).name
        assert run_.data.tags["nlgraft.study"] == name


def test_plan_shows_the_variant_and_its_overrides(toy_document, tmp_path):
    file = write_study(tmp_path / "toy.json", toy_document)
    plan = json_of("plan", file, *OVERRIDES, "--json")
    assert plan["study"] == Study.from_dict(toy_document, OVERRIDES).variant
    assert plan["overrides"] == OVERRIDES
    shown = nlgraft("plan", file, *OVERRIDES).stdout
    assert plan["study"] in shown
    assert "steps=4" in shown
