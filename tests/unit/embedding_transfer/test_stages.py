"""Whole trials on a few constructed sentences, in this process."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from nlgraft.pipeline.store import ArtifactStore
from nlgraft.training.models import read_model
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.small_studies import GREEDY, TINY
from tests.tensors import differing
from tests.unit.embedding_transfer.bert_configs import states
from tests.unit.stages.runs import finish
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
    "model": TINY | {"dropout": 0.1},
    "upstream": {"train": {"max_steps": 6, "batch_tokens": 800, "warmup_steps": 2, "peak_lr": 0.01}},
    "downstream": {"train": {"max_steps": 4, "batch_tokens": 800, "warmup_steps": 2, "peak_lr": 0.01}},
    "generator": {"max_steps": 4, "batch_tokens": 800, "eval_every_steps": 2, "num_dev_sentences": 6},
    "decode": GREEDY | {"beam": 2},
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
    return finish(store, stage_graph(chosen, seed=seed, splits=splits), chosen, METRICS)


@pytest.mark.parametrize("method", ["single_run", "avg_eg", "patt_eg"])
def test_arms_run_to_their_scores(store, method):
    record, at = run(store, method)
    expected = {f"{split}/{name}" for split in SPLITS for name in ("bleu", "chrf", "ter", "reference_length")}
    assert expected | {"dev/loss", "dev/nats_per_char", "parameters/total"} <= set(record.metrics)
    assert ("upstream/dev_bleu" in record.metrics) == (method != "single_run")
    assert record.metrics.get("generator/parameters") == (6 * 16 if method == "patt_eg" else None)
    segments = load_file(at("scores") / "segments-test.safetensors")
    assert len(segments["bleu"]) == 8


def test_the_same_trial_gives_the_same_numbers(store, tmp_path):
    first, _ = run(store, "patt_eg")
    again, _ = run(ArtifactStore.open(tmp_path), "patt_eg")
    is_time = {name for name, metric in METRICS.items() if metric.is_time}
    assert {k: v for k, v in first.metrics.items() if k not in is_time} == {
        k: v for k, v in again.metrics.items() if k not in is_time
    }


def models(store, method, **changes):
    _, at = run(store, method, splits=("dev",), **changes)
    before, after = states(at, "upstream", "transfer")
    return at, before, after


def test_transfer_changes_the_exchanged_side_only(store):
    """Invariant V41 on our own model: encoder and body bitwise equal, decoder input and output still one."""
    at, before, after = models(store, "avg_eg")
    tables = {"target_embedding.table.weight", "output_projection.weight"}
    assert differing(before, after) == tables
    assert torch.equal(after["target_embedding.table.weight"], after["output_projection.weight"])
    plan = TransferPlan.load(at("transfer") / "plan-decoder")
    copied = plan.rows(Provenance.COPY)
    assert len(copied) > 20
    old = [plan.matrix[row].indices[0] for row in copied]
    assert torch.equal(
        after["target_embedding.table.weight"][copied], before["target_embedding.table.weight"][old]
    )
    report = json.loads((at("transfer") / "report.json").read_text())
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
    shared = {"model": {"tying": "all"}, "tokenizers": SHARED}
    at, _, after = models(store, "patt_eg", transfer={"method": "patt_eg", "sides": sides}, **shared)
    source, target = after["source_embedding.table.weight"], after["target_embedding.table.weight"]
    assert (source.data_ptr() == target.data_ptr()) == (num_tables == 1)
    model = read_model(at("transfer"))
    body = sum(
        p.numel()
        for n, p in model.named_parameters()
        if "embedding" not in n and "output_projection" not in n
    )
    rows = len(target) if num_tables == 1 else len(source) + len(target)
    assert sum(p.numel() for p in model.parameters()) == body + rows * 16


def test_random_rows_differ_between_seeds_and_copied_rows_do_not(store):
    plans = []
    for seed in (1, 2):
        directory = run(store, "random_init", seed=seed, splits=("dev",))[1]("transfer")
        plan = TransferPlan.load(directory / "plan-decoder")
        weight = read_model(directory).state_dict()["target_embedding.table.weight"].numpy()
        plans.append((plan, weight))
    drawn, copied = plans[0][0].rows(Provenance.NOISE), plans[0][0].rows(Provenance.COPY)
    assert not np.isclose(plans[0][1][drawn], plans[1][1][drawn]).all(axis=1).any()
    assert np.array_equal(plans[0][1][copied], plans[1][1][copied])
    assert abs(plans[0][1][drawn].std() * 4 - 1) < 0.1


def test_calibration_and_other_measures_are_asked_for(store):
    requested = {"metrics": ["bleu", "rouge_l", "meteor"], "is_calibrated": True}
    score = {"score": requested, "decode": {"min_length": 3}}
    record, at = run(store, "avg_eg", **score)
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
    segments = load_file(at("translation_test") / "segments-test.safetensors")
    sums = segments["ece"].sum(0).reshape(-1, 3)
    tokens, confidence, right = sums.T
    assert record.metrics["test/ece"] == pytest.approx(100 * abs(right - confidence).sum() / tokens.sum())
    assert (right <= tokens).all()
    plain, scored = (stage_graph(config("avg_eg", **each), seed=1, splits=SPLITS) for each in ({}, score))
    assert plain.find("finetuned") == scored.find("finetuned")
    assert not plain.find("translation_test").config["is_calibrated"]
