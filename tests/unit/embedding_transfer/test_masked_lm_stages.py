"""Whole trials of a masked language model on a few constructed sentences, and parts on a checkpoint."""

import pytest

from tests.unit.stages.runs import finish
from trainables.embedding_transfer import METRICS, Config, stage_graph

SPLITS = ("dev", "test")
TEXT = {"corpus": "conlang", "task": "monolingual"}
TRAIN = {
    "max_steps": 4,
    "batch_tokens": 500,
    "warmup_steps": 2,
    "eval_every_steps": 2,
}
SMALL = {
    "data": {
        "upstream": {**TEXT, "domain": "a", "train": 200, "dev": 12, "test": 4},
        "downstream": {**TEXT, "domain": "b", "train": 100, "dev": 12, "test": 8},
    },
    "masked_lm": {
        "model": {"d_model": 16, "num_heads": 2, "ffn_dim": 32},
        "upstream_tokenizer": {"vocab_size": 160},
        "downstream_tokenizer": {"vocab_size": 180},
    },
    "upstream": {"train": {**TRAIN, "peak_lr": 0.01}},
    "downstream": {"train": {**TRAIN, "peak_lr": 0.001}},
    "generator": {
        "max_steps": 4,
        "batch_tokens": 500,
        "eval_every_steps": 2,
        "num_dev_sentences": 6,
        "encoder_rates": {"min_split_chars": 3},
    },
    "vectors": {"epochs": 1},
}


def run(store, method, **changes):
    config = Config(**(SMALL | {"transfer": {"method": method}} | changes))
    return finish(store, stage_graph(config, seed=1, splits=SPLITS), config, METRICS)


@pytest.mark.parametrize("method", ["pretrain_finetune", "random_init", "focus", "patt_eg"])
def test_arms_run_to_their_scores(store, method):
    record, _ = run(store, method)
    names = {f"dev/{name}{step}" for name in ("loss", "mlm_loss_per_char") for step in ("", ".step_0")}
    assert names | {"test/mlm_loss_per_char", "test/loss", "dev/mlm_chars"} <= set(record.metrics)
    assert record.metrics["dev/mlm_unknown"] == 0.0
    assert record.metrics.get("generator/parameters") == (6 * 16 if method == "patt_eg" else None)
    assert record.metrics.get("transfer/drawn", 0) == 0 or method in ("random_init", "focus")


def test_arms_are_asked_about_the_same_characters(store):
    requested = {
        name: run(store, "pretrain_finetune" if name == "old" else "random_init", **changes)[0].metrics
        for name, changes in {
            "old": {},
            "wordpiece": {},
            "unigram": {
                "masked_lm": SMALL["masked_lm"]
                | {"downstream_tokenizer": {"kind": "unigram", "vocab_size": 120}}
            },
        }.items()
    }
    assert len({metrics["dev/mlm_chars"] for metrics in requested.values()}) == 1


@pytest.mark.slow
def test_a_real_checkpoint_goes_through_a_trial(store, minilm, multi30k):
    """Which arm costs less is what the study measures, no invariant."""
    files = {
        split: {"sources": str(multi30k / f"{name}.en.gz")}
        for split, name in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr"))
    }
    text = {"corpus": "files", **files, "limits": {"train": 3000, "dev": 100, "test": 20}}
    changes = {
        "data": {"upstream": text, "downstream": text, "max_tokens": 100},
        "masked_lm": {
            "checkpoint": str(minilm),
            "downstream_tokenizer": {"vocab_size": 3000, "is_lowercase": True},
            "num_scoring_rounds": 3,
        },
        "upstream": {
            "train": {**TRAIN, "max_steps": 60, "eval_every_steps": 60, "batch_tokens": 256, "peak_lr": 3e-4}
        },
        "downstream": {"train": {**TRAIN, "max_steps": 2, "batch_tokens": 64, "peak_lr": 1e-4}},
    }
    by_method = {method: run(store, method, **changes)[0].metrics for method in ("random_init", "avg_eg")}
    for metrics in by_method.values():
        # a head that has learned nothing costs 2.9 nats per character
        assert metrics["upstream/dev_mlm_loss_per_char"] < 2.0
        assert metrics["dev/mlm_loss_per_char.step_0"] < 2.0
        assert metrics["transfer/copied"] > 0.5
    assert len({metrics["dev/mlm_chars"] for metrics in by_method.values()}) == 1
    assert len({metrics["dev/mlm_loss_per_char.step_0"] for metrics in by_method.values()}) == 2
