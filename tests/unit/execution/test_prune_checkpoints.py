"""Which checkpoints of stopped trials are removed, and which somebody may still want."""

import pytest

from nlgraft.execution.events import TrialEnded
from nlgraft.execution.sweep import prune_checkpoints
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial


def stage(name, inputs=None):
    return Stage(name=name, run="some.module:train", seed=1, inputs=inputs or {})


UPSTREAM = stage("upstream")
TRAINING = stage("training", {"upstream": UPSTREAM})


@pytest.fixture
def store(tmp_path):
    store = ArtifactStore.open(tmp_path)
    for trained in (UPSTREAM, TRAINING):
        for step in (3, 6):
            store.checkpoints(trained).save(step, lambda path: (path / "state.json").write_text("{}"))
    return store


def ended(kind, state, result):
    graph = StageGraph(result)
    cell = Cell(levels={}, overrides={}, is_baseline=True, label="baseline")
    unit = SweepTrial(number=0 if kind == "search" else None, cell=cell, seed=1, config={}, graph=graph)
    record = TrialRecord(
        fingerprint=graph.fingerprint, config={}, seed=1, state=state, started_at=0.0, ended_at=1.0, host="h"
    )
    return TrialEnded(unit, record)


def left(store):
    return [s.name for s in (UPSTREAM, TRAINING) if store.checkpoints(s).newest_step() is not None]


def test_all_stages_of_a_stopped_proposal_lose_theirs(store):
    assert prune_checkpoints(store, [ended("search", "stopped", TRAINING)]) == 2
    assert left(store) == []
    assert prune_checkpoints(store, [ended("search", "stopped", TRAINING)]) == 0


@pytest.mark.parametrize("state", ["failed", "killed"])
def test_what_the_next_sweep_runs_again_goes_on_from_its_checkpoint(store, state):
    events = [ended("search", "stopped", TRAINING), ended("replicate", state, UPSTREAM)]
    assert prune_checkpoints(store, events) == 1
    assert left(store) == ["upstream"]


def test_only_proposals_are_never_run_again(store):
    """A replicate that its owner stopped is not finished, so the next sweep takes it up."""
    events = [ended("replicate", "stopped", TRAINING), ended("search", "finished", TRAINING)]
    assert prune_checkpoints(store, events) == 0
    assert left(store) == ["upstream", "training"]


def test_what_another_sweep_computes_stays(store):
    with store.leases.acquire(TRAINING.fingerprint, "another sweep"):
        assert prune_checkpoints(store, [ended("search", "stopped", TRAINING)]) == 1
    assert left(store) == ["training"]
    assert store.leases.busy() == set()
