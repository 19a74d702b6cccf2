"""One training on one worker and on two, through Ray Train: the same curve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nlgraft.execution.cluster import connected
from nlgraft.execution.events import Event, TrialEnded
from nlgraft.execution.sweep import run_sweep
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial_record import TrialRecord
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Resources
from nlgraft.study.public import Study


@pytest.fixture(scope="module", autouse=True)
def ray_cluster() -> Iterator[None]:
    with connected(None, Resources()):
        yield


def record_of(document: dict[str, Any], storage: Path, num_workers: int) -> TrialRecord:
    study = Study.from_dict(
        {**document, "storage": {"path": str(storage)}, "resources": {"workers": num_workers}}
    )
    events: list[Event] = []
    run_sweep(study, ArtifactStore.open(study.storage.path), cells(study), events.append)
    [ended] = [event for event in events if isinstance(event, TrialEnded)]
    assert ended.record.state == "finished", ended.record.reason
    return ended.record


@pytest.mark.slow  # by default test_sweep trains a toy through Ray Train, test_training_workers compares
@pytest.mark.timeout(600)
def test_two_workers_give_the_curve_of_one(tmp_path: Path) -> None:
    corpus = {"corpus": "conlang", "train": 300, "dev": 40, "test": 40}
    document = {
        "name": "workers",
        "system": "trainables.embedding_transfer",
        "data": {"upstream": {**corpus, "domain": "a"}, "downstream": {**corpus, "domain": "b"}},
        "base": {
            "transfer": {"method": "single_run"},
            "tokenizers": {"downstream": {"vocab_size": 200}},
            "model": {"preset": "tiny", "d_model": 32, "ffn_dim": 64, "num_heads": 2, "dropout": 0.0},
            "downstream": {
                "train": {
                    "max_steps": 20,
                    "batch_tokens": 600,
                    "warmup_steps": 5,
                    "peak_lr": 1e-3,
                    "report_every_steps": 1,
                    "eval_every_steps": 10,
                }
            },
            "decode": {"beam": 1},
        },
        "objective": {"metric": "dev/bleu", "direction": "maximize"},
        "seeds": [1],
    }
    one = record_of(document, tmp_path / "one", 1)
    two = record_of(document, tmp_path / "two", 2)
    assert one.fingerprint == two.fingerprint, "how many workers train it is no part of a trial's identity"
    for name in ("train/loss", "dev/loss"):
        values = [value for _, value, _ in one.curves[name]]
        assert len(values) >= 2
        assert [value for _, value, _ in two.curves[name]] == pytest.approx(values, rel=1e-4)
