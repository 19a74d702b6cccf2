"""A small study whose trials have run, on a store of its own, without Ray."""

import pytest

from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell
from tests.contract.toys.minimal_system import ARMS
from tests.small_studies import TINY

DOCUMENT = {
    "name": "small",
    "system": "examples.minimal_system",
    "data": ARMS["first"]["data"],
    "base": {name: ARMS["first"][name] for name in ("tokenizer", "train", "decode")} | {"model": TINY},
    "factors": {"read": {"target": "read", "levels": ["first", "both"], "baseline": "first"}},
    "objective": {"metric": "dev/loss", "direction": "minimize"},
    "seeds": [1, 2, 3],
}


def run_all(study):
    """Run every replicate of a study without a search, and record it as ``nlgraft run`` does."""
    store = ArtifactStore.open(study.storage.path)
    study.record(store)
    for cell in cells(study):
        resolved = resolve_cell(study, cell)
        for seed in study.seeds:
            config = resolved.config.model_dump(mode="json")
            graph = resolved.graph(seed)
            record = run_trial(graph, store, reporter=NullReporter(), config=config, is_waiting=True)
            assert record.state == "finished", record.reason


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two cells, one source or both, and three seeds; all have finished."""
    root = tmp_path_factory.mktemp("finished")
    small_study = Study.from_dict({**DOCUMENT, "storage": {"path": str(root / "store")}})
    run_all(small_study)
    return small_study
