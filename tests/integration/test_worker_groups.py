"""One trial on one worker and on two, through Ray Train: the same curves and metrics."""

import pytest

from nlgraft.execution.cluster import connected
from nlgraft.execution.events import Driver, TrialEnded
from nlgraft.execution.sweep import run_sweep
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Resources
from nlgraft.study.public import Study
from tests.contract.toy_arms import study_of


@pytest.fixture(scope="module", autouse=True)
def ray_cluster():
    with connected(None, Resources()):
        yield


def record_of(document, storage, num_workers, sharding="none"):
    resources = {"workers": num_workers, "sharding": sharding}
    study = Study.from_dict({**document, "storage": {"path": str(storage)}, "resources": resources})
    events = []
    run_sweep(study, ArtifactStore.open(study.storage.path), cells(study), Driver(events.append))
    [ended] = [event for event in events if isinstance(event, TrialEnded)]
    assert ended.record.state == "finished", ended.record.reason
    return ended.record


_CORPUS = {"corpus": "conlang", "train": 300, "dev": 40, "test": 40}
_SIZES = {"d_model": 32, "ffn_dim": 64, "num_heads": 2, "dropout": 0.0}
_TRAIN = {
    "max_steps": 20,
    "batch_tokens": 600,
    "warmup_steps": 5,
    "peak_lr": 1e-3,
    "eval_every_steps": 2,
}
TRIALS = {
    "embedding_transfer": {
        "data": {"upstream": {**_CORPUS, "domain": "a"}, "downstream": {**_CORPUS, "domain": "b"}},
        "base": {
            "transfer": {"method": "single_run"},
            "tokenizers": {"downstream": {"vocab_size": 200}},
            "downstream": {"train": _TRAIN},
        },
    },
    # a finetuned pretrained model, at a rate of its own; it is itself pretrained on as many workers
    "prlm_fusion": {
        "data": {
            "downstream": {**_CORPUS, "task": "translation"},
            "upstream": {**_CORPUS, "task": "monolingual", "language": "first"},
        },
        "base": {
            "tokenizer": {"vocab_size": 200},
            "prlms": {"bert": {"kind": "bert", "model": {**_SIZES, "num_layers": 2}}},
            "pretraining": {"tokenizer": {"vocab_size": 150}, "train": {**_TRAIN, "max_steps": 10}},
            "fusion": {"prlms": ["bert"], "is_frozen": False, "lr_multiplier": 0.1},
            "train": _TRAIN,
        },
    },
    # a tied table whose new rows learn alone at first
    "llm_vocabulary": {
        "data": {part: {**_CORPUS, "task": "monolingual"} for part in ("upstream", "downstream")},
        "base": {
            "causal_lm": {
                "model": {"d_model": 16, "num_heads": 2, "ffn_dim": 24},
                "tokenizer": {"vocab_size": 290},
                "max_tokens": 24,
            },
            "upstream": {"train": {**_TRAIN, "max_steps": 10}},
            "vocabulary": {"change": "extend", "num_added": 20, "method": "random"},
            "training": {"train": _TRAIN, "new_rows_first_steps": 5},
        },
    },
}
"""Trials without dropout, whose draws would depend on how rows are dealt."""


def document_of(system):
    """A study of one of these trials."""
    trial = TRIALS[system]
    base = (
        {"model": {"preset": "tiny", **_SIZES}, "decode": {"beam": 1}} if system != "llm_vocabulary" else {}
    )
    return study_of(system, {"data": trial["data"], **trial["base"], **base}, "dev/loss", "minimize")


@pytest.mark.slow  # by default test_sweep trains a toy through Ray Train, test_training_workers compares
@pytest.mark.parametrize(
    ("system", "sharding"),
    [
        ("embedding_transfer", "none"),
        ("prlm_fusion", "none"),
        ("prlm_fusion", "full"),
        ("llm_vocabulary", "full"),
    ],
)
def test_two_workers_give_the_metrics_of_one(system, sharding, tmp_path):
    """Both see the same global batches, and gradients are sums over them: only the order of floats differs.

    Adam divides by the root of the second moment, which magnifies that order where gradients are near zero;
    in fp32 twenty steps keep losses within 1e-4.
    """
    document = document_of(system)
    single = record_of(document, tmp_path / "one", 1)
    double = record_of(document, tmp_path / "two", 2, sharding)
    assert single.fingerprint == double.fingerprint, (
        "how many workers train it is no part of a trial's identity"
    )
    for name in ("train/loss", "dev/loss"):
        values = [value for _, value, _ in single.curves[name]]
        assert len(values) >= 2
        assert [value for _, value, _ in double.curves[name]] == pytest.approx(values, rel=1e-4)
    if system != "llm_vocabulary":  # which scores no text here
        assert double.signatures["test/sentences_per_s"].endswith("|workers:2")
    for name in single.metrics.keys() & {"dev/loss", "bert/dev_loss", "train_tokens", "parameters/trained"}:
        assert double.metrics[name] == pytest.approx(single.metrics[name], rel=1e-4), name
