"""Whole trials on a few constructed sentences, in this process."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from nlgraft.nn.model_config import ArchitectureConfig
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.training.models import read_model
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.tensors import differing
from trainables.embedding_transfer import METRICS, Config, stage_graph

SPLITS = ("dev", "test")
SMALL = {
    "data": {
        "upstream": {"corpus": "conlang", "domain": "a", "train": 300, "dev": 12, "test": 4},
        "downstream": {"corpus": "conlang", "domain": "b", "train": 120, "dev": 10, "test": 8},
    },
    "tokenizers": {
        "upstream": {"vocab_size": 160, "is_shared": False},
        "downstream": {"vocab_size": 200, "is_shared": False},
    },
    "model": {"preset": "tiny", "d_model": 16, "ffn_dim": 32, "num_heads": 2, "dropout": 0.1},
    "upstream": {"train": {"max_steps": 6, "batch_tokens": 800, "warmup_steps": 2, "peak_lr": 0.01}},
    "downstream": {"train": {"max_steps": 4, "batch_tokens": 800, "warmup_steps": 2, "peak_lr": 0.01}},
    "generator": {"max_steps": 4, "batch_tokens": 800, "eval_every_steps": 2, "num_dev_sentences": 6},
    "decode": {"beam": 2, "max_length_ratio": 0, "max_length_offset": 6},
}


SHARED = {side: {"is_shared": True} for side in ("upstream", "downstream")}


def nested(base, changes):
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = nested(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


def config(method, **changes):
    return Config(**nested(SMALL, {"transfer": {"method": method}} | changes))


def run(store, method, seed=1, splits=SPLITS, **changes):
    chosen = config(method, **changes)
    graph = stage_graph(chosen, seed=seed, splits=splits)
    settings = chosen.model_dump(mode="json")
    return graph, run_trial(graph, store, reporter=NullReporter(), config=settings, is_waiting=True)


@pytest.mark.parametrize("method", ["single_run", "avg_eg", "patt_eg"])
def test_arms_run_to_their_scores(store, method):
    graph, record = run(store, method)
    assert record.state == "finished"
    assert set(record.metrics) <= set(METRICS)
    expected = {f"{split}/{name}" for split in SPLITS for name in ("bleu", "chrf", "ter", "reference_length")}
    assert expected | {"dev/loss", "dev/nats_per_char", "parameters/total"} <= set(record.metrics)
    assert ("upstream/dev_bleu" in record.metrics) == (method != "single_run")
    assert record.metrics.get("generator/parameters") == (6 * 16 if method == "patt_eg" else None)
    segments = load_file(store.fetch(graph.result) / "segments-test.safetensors")
    assert len(segments["bleu"]) == 8


def test_the_same_trial_gives_the_same_numbers(store, tmp_path):
    _, first = run(store, "patt_eg")
    _, again = run(ArtifactStore.open(str(tmp_path)), "patt_eg")
    is_time = {name for name, metric in METRICS.items() if metric.is_time}
    assert {k: v for k, v in first.metrics.items() if k not in is_time} == {
        k: v for k, v in again.metrics.items() if k not in is_time
    }


def models(store, method, **changes):
    graph, _ = run(store, method, splits=("dev",), **changes)
    before, after = (read_model(store.fetch(graph.find(name))) for name in ("upstream", "transfer"))
    return graph, before.state_dict(), after.state_dict()


def test_transfer_changes_the_exchanged_side_only(store):
    """Invariant V41 on our own model: encoder and body bitwise equal, decoder input and output still one."""
    graph, before, after = models(store, "avg_eg")
    tables = {"target_embedding.table.weight", "output_projection.weight"}
    assert differing(before, after) == tables
    assert torch.equal(after["target_embedding.table.weight"], after["output_projection.weight"])
    plan = TransferPlan.load(store.fetch(graph.find("transfer")) / "plan-decoder")
    copied = plan.rows(Provenance.COPY)
    assert len(copied) > 20
    old = [plan.matrix[row].indices[0] for row in copied]
    assert torch.equal(
        after["target_embedding.table.weight"][copied], before["target_embedding.table.weight"][old]
    )
    report = json.loads((store.fetch(graph.find("transfer")) / "report.json").read_text())
    assert report["decoder"]["norms"]["num_zero"] <= 1  # padding


@pytest.mark.parametrize(
    ("sides", "changed"),
    [
        ("encoder", {"source_embedding.table.weight"}),
        (
            "both",
            {"source_embedding.table.weight", "target_embedding.table.weight", "output_projection.weight"},
        ),
    ],
)
def test_sides(store, sides, changed):
    _, before, after = models(store, "patt_eg", transfer={"method": "patt_eg", "sides": sides})
    assert differing(before, after) == changed


@pytest.mark.parametrize(("sides", "num_tables"), [("decoder", 2), ("both", 1)])
def test_one_table_for_all(store, sides, num_tables):
    """Invariant V41: a shared table is untied when one side is exchanged and stays one when both are."""
    shared = {
        "model": {"tying": "all"},
        "tokenizers": {"upstream": {"is_shared": True}, "downstream": {"is_shared": True}},
    }
    graph, _, after = models(store, "patt_eg", transfer={"method": "patt_eg", "sides": sides}, **shared)
    source, target = after["source_embedding.table.weight"], after["target_embedding.table.weight"]
    assert (source.data_ptr() == target.data_ptr()) == (num_tables == 1)
    model = read_model(store.fetch(graph.find("transfer")))
    body = sum(
        p.numel()
        for n, p in model.named_parameters()
        if "embedding" not in n and "output_projection" not in n
    )
    rows = len(target) if num_tables == 1 else len(source) + len(target)
    assert sum(p.numel() for p in model.parameters()) == body + rows * 16


@pytest.mark.parametrize(
    ("sides", "has_bias", "changes"),
    [
        ("decoder", True, {}),
        ("both", True, {"model": {"tying": "none"}}),
        ("both", False, {"model": {"tying": "all"}, "tokenizers": SHARED}),
    ],
)
def test_new_rows_learn_first(store, monkeypatch, sides, has_bias, changes):
    """Where all steps are such steps, all else is that of the exchanged model, bit for bit."""
    made = ArchitectureConfig.transformer  # released checkpoints have an output bias
    monkeypatch.setattr(ArchitectureConfig, "transformer", lambda self: made(self, has_output_bias=has_bias))
    transfer = {"method": "avg_eg", "sides": sides, "new_rows_first_steps": 4}
    decays = {"downstream": {"train": {"weight_decay": 0.1, "average_last": 1}}}
    graph, _ = run(store, "avg_eg", splits=("dev",), transfer=transfer, **decays, **changes)
    start = store.fetch(graph.find("transfer"))
    before, after = (
        read_model(directory).state_dict() for directory in (start, store.fetch(graph.find("finetuned")))
    )
    names = {
        "encoder": {"source_embedding.table.weight"},
        "decoder": {"target_embedding.table.weight", "output_projection.weight", "output_projection.bias"},
    }
    exchanged = {
        name: TransferPlan.load(start / f"plan-{side}")
        for side in (names if sides == "both" else ("decoder",))
        for name in names[side] & set(before)
    }
    kept = (Provenance.COPY, Provenance.SPECIAL)
    for name, weights in before.items():
        if name not in exchanged:
            assert torch.equal(weights, after[name]), name
            continue
        plan = exchanged[name]
        is_changed = (weights != after[name]).reshape(len(plan), -1).any(1).numpy()
        assert not is_changed[plan.rows(*kept)].any(), name
        assert is_changed[plan.rows(Provenance.COMPOSED)].mean() > 0.5, name


def test_then_all_rows_learn(store):
    transfer = {"method": "avg_eg", "new_rows_first_steps": 3}
    graph, _ = run(store, "avg_eg", splits=("dev",), transfer=transfer)
    before, after = (
        read_model(store.fetch(graph.find(name))).state_dict() for name in ("transfer", "finetuned")
    )
    assert differing(before, after) == before.keys()


def test_random_rows_differ_between_seeds_and_copied_rows_do_not(store):
    plans = []
    for seed in (1, 2):
        graph, _ = run(store, "random_init", seed=seed, splits=("dev",))
        directory = store.fetch(graph.find("transfer"))
        plan = TransferPlan.load(directory / "plan-decoder")
        weight = read_model(directory).state_dict()["target_embedding.table.weight"].numpy()
        plans.append((plan, weight))
    drawn, copied = plans[0][0].rows(Provenance.NOISE), plans[0][0].rows(Provenance.COPY)
    assert not np.isclose(plans[0][1][drawn], plans[1][1][drawn]).all(axis=1).any()
    assert np.array_equal(plans[0][1][copied], plans[1][1][copied])
    assert abs(plans[0][1][drawn].std() * 4 - 1) < 0.1


def test_sampled_segmentation_and_greedy_bleu(store):
    changes = {
        "tokenizers": {"downstream": {"sampling_alpha": 0.2}},
        "downstream": {
            "num_bleu_sentences": 5,
            "train": {"best_metric": "dev/greedy_bleu"},
        },
    }
    _, record = run(store, "avg_eg", **changes)
    assert record.state == "finished"
    assert "dev/greedy_bleu" in record.curves


def test_calibration_and_other_measures_are_asked_for(store):
    requested = {"metrics": ["bleu", "rouge_l", "meteor"], "is_calibrated": True}
    score = {"score": requested, "decode": {"min_length": 3}}
    graph, record = run(store, "avg_eg", **score)
    names = {name.removeprefix("test/") for name in record.metrics if name.startswith("test/")}
    assert names == {
        "bleu",
        "rouge_l",
        "meteor",
        "ece",
        "hypothesis_length",
        "reference_length",
        "length_saved",
        "sentences_per_s",
        "tokens_per_s",
    }
    segments = load_file(store.fetch(graph.find("translation_test")) / "segments-test.safetensors")
    sums = segments["ece"].sum(0).reshape(-1, 3)
    tokens, confidence, right = sums.T
    assert record.metrics["test/ece"] == pytest.approx(100 * abs(right - confidence).sum() / tokens.sum())
    assert (right <= tokens).all()
    plain = stage_graph(config("avg_eg"), seed=1, splits=SPLITS)
    assert plain.find("finetuned") == graph.find("finetuned")
    assert not plain.find("translation_test").config["is_calibrated"]
