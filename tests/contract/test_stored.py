"""Stores that releases have written are read by every later one: nothing in them is computed anew.

For another release: freeze the system beside the sample, run STUDY, and keep the text of `artifacts` and
`records` by its place in the store, as JSON.
"""

import json
from pathlib import Path

import pytest

from nlgraft import api
from nlgraft.execution.events import Driver
from nlgraft.execution.optuna_study import OptunaStudy
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from tests.small_studies import GAINS

MEANS = [1.5 + 0.4904273994980877, 2.5 + 0.4904273994980877]
SAMPLES = sorted((Path(__file__).parent / "stored").glob("store_of_*.json"))
STUDY = {
    "name": "sums",
    "factors": {"gain": GAINS},
    "search": {
        "sampler": {"name": "random", "seed": 1},
        "space": {"noise": {"type": "float", "low": 0.0, "high": 0.5}},
        "trials": 2,
    },
    "objective": {"metric": "dev/sum", "direction": "maximize"},
    "seeds": [1, 2],
}


def study_of(sample, store):
    system = f"tests.contract.stored.{sample.stem.replace('store', 'system')}"
    return Study.from_dict({**STUDY, "system": system, "storage": {"path": str(store)}})


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_store_of_an_earlier_release_is_read_and_nothing_runs_again(sample, tmp_path):
    for name, text in json.loads(sample.read_text("utf-8")).items():
        (tmp_path / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / name).write_text(text, "utf-8")
    study = study_of(sample, tmp_path / "store")
    search = study.search
    queue = TrialQueue(
        study,
        ArtifactStore.open(tmp_path / "store"),
        cells(study),
        lambda cell: OptunaStudy(cell.label, search, study.objective, None),
        Driver(lambda event: None),
        max_concurrent=2,
    )
    queue.open()
    assert queue.is_done
    assert (queue.num_reused, queue.num_run, queue.num_failed) == (8, 0, 0)
    loaded = api.load(study).to_json()
    means = [cell["metrics"]["dev/sum"]["mean"] for cell in loaded["cells"]]
    assert means == pytest.approx(MEANS, abs=1e-9)
