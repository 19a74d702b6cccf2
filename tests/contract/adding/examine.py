"""Examine studies in a process of their own: what is said of each before, and found after its run."""

import json
import sys
from pathlib import Path
from typing import Any

import mlflow

from nlgraft import api
from nlgraft.basics.errors import NlgraftError
from nlgraft.pipeline.stage import NullReporter
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.catalogue import settings_of, shipped_systems
from nlgraft.study.reading.system_import import load_system


def refusal(document: dict[str, Any]) -> str:
    try:
        api.plan(Study.from_dict(document))
    except NlgraftError as error:
        return str(error)
    return "accepted"


def tracked(uri: str) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    """Parameters and metrics of the trials' runs, names of their datasets, and the study's parameters."""
    client = mlflow.MlflowClient(uri)
    all_runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    runs = [run for run in all_runs if run.data.tags.get("nlgraft.kind") == "trial"]
    [study] = [run for run in all_runs if run.data.tags.get("nlgraft.kind") == "study"]
    trials = {run.info.run_id: {"params": run.data.params, "metrics": run.data.metrics} for run in runs}
    datasets = sorted({entry.dataset.name for run in runs for entry in run.inputs.dataset_inputs})
    return trials, datasets, study.data.params


def examine(document: dict[str, Any]) -> dict[str, Any]:
    study = Study.from_dict(document["study"])
    for cell in cells(study):
        record = api.run_one(study, cell.label, None, NullReporter())
        assert record.state == "finished", record.reason
    result = api.launch(study)  # every trial has been run: nothing is left for Ray
    trials, datasets, of_the_study = tracked(result.invocation.tracking_uri)
    return {
        "mistakes": {
            name: refusal({**document["study"], **mistake}) for name, mistake in document["mistakes"].items()
        },
        "systems": shipped_systems(),
        "knobs": {knob["path"]: knob for knob in settings_of(load_system(study.system))},
        "schema": json.dumps(Study.json_schema(study.system)),
        "trials": trials,
        "datasets": datasets,
        "of_the_study": of_the_study,
        "report": result.render("md"),
        "result": {name: metric.direction for name, metric in result.metrics.items() if "exact" in name},
    }


place = Path(sys.argv[1])
documents = json.loads(place.read_text("utf-8"))
examined = {document["study"]["name"]: examine(document) for document in documents}
place.with_name("examined.json").write_text(json.dumps(examined), "utf-8")
