"""Costs that are scaled from earlier runs, by hand."""

from dataclasses import replace

import pytest

from nlgraft.pipeline.integrity import FileEntry
from nlgraft.pipeline.manifest import describe_artifact
from nlgraft.pipeline.stage import Stage, Work
from nlgraft.pipeline.store import StageCost, TimedRun, text_bytes
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.cost import TextSize, cost_of


def training(**options):
    return Stage(name="training", run="m:f", work=Work(**options))


def manifest_of(stage, seconds, *, inputs=(), files=None, workers=1):
    making = {"started_at": 0.0, "duration_s": seconds, "reason": "", "num_workers": workers}
    manifest = describe_artifact(stage, files or {}, making)
    return replace(
        manifest, bytes=1000, inputs={str(number): upstream for number, upstream in enumerate(inputs)}
    )


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 1.0),
        ({"num_steps": 6000}, 60.0),
        # 100 steps of 0.02 s and 6 * 1.6e6 * 1000 / 7e10 = 0.96 / 7 s
        ({"tokens_per_step": 3000}, 3.02 / 1.1),
        ({"num_parameters": 2_000_000}, 1.7 / 1.1),
        ({"max_workers": 2}, 0.62 / 1.1),
    ],
)
def test_a_training_is_scaled_by_steps_tokens_weights_and_workers(changes, factor):
    size = {"num_steps": 100, "tokens_per_step": 1000, "num_parameters": 1_000_000}
    run = manifest_of(training(**size), 70.0)
    costs = {"training": StageCost(70.0, 1000.0, (TimedRun(run, None),))}
    workers = changes.pop("max_workers", 1)
    planned = training(**(size | changes))
    cost = cost_of([(planned, 2)], costs, Resources(workers=workers))
    assert cost.seconds == pytest.approx(2 * 70 * factor)
    assert cost.num_bytes == pytest.approx(2 * 1000 * changes.get("num_parameters", 1_000_000) / 1_000_000)
    assert cost.scaled == (("training",) if factor != 1 else ())


def test_the_run_that_is_nearest_in_size_counts_and_a_gpu_is_no_cpu():
    sizes = {100: 10.0, 1000: 400.0}
    runs = [(training(num_steps=steps, tokens_per_step=9, num_parameters=9), s) for steps, s in sizes.items()]
    costs = {"training": StageCost(1.0, 1.0, tuple(TimedRun(manifest_of(*run), None) for run in runs))}
    planned = training(num_steps=2000, tokens_per_step=9, num_parameters=9)
    assert cost_of([(planned, 1)], costs, Resources()).seconds == pytest.approx(800)
    on_gpu = cost_of([(planned, 1)], costs, Resources(gpus_per_worker=1))
    assert on_gpu.estimated == ("training",)


def test_other_stages_are_scaled_by_the_text_of_the_split_that_they_read():
    corpus = Stage(name="corpus", run="m:f", locations={"corpus": {}})
    test, dev = (
        Stage(name="translation", run="m:f", config={"split": split}, inputs={"corpus": corpus})
        for split in ("test", "dev")
    )
    files = {
        f"{split}/{name}": FileEntry("", number)
        for split, number in (("dev", 50), ("test", 500))
        for name in ("corpus.json", "x.txt")
    }
    read = manifest_of(corpus, 1.0, files=files)
    run = manifest_of(dev, 2.3, inputs=[read.fingerprint])
    manifests = {manifest.fingerprint: manifest for manifest in (read, run)}
    costs = {"translation": StageCost(2.3, 1000.0, (TimedRun(run, text_bytes(run, manifests)),))}
    sizes = {"train": 10**6, "dev": 100, "test": 1000}
    corpora = {
        corpus.fingerprint: {split: {"target": TextSize(1, 1, number)} for split, number in sizes.items()}
    }
    cost = cost_of([(test, 1)], costs, Resources(), corpora)
    assert cost.seconds == pytest.approx(0.3 + 2.0 * 10)
    assert cost.scaled == ("translation",)


@pytest.mark.parametrize(
    ("precision", "selection", "num_bytes"),
    [
        ("fp16", {"kind": "index", "num_last": None}, 64 * 2),
        ("fp32", {"kind": "index", "num_last": None}, 64 * 4),
        ("fp16", {"kind": "mean", "num_last": 4}, 64 * 2 * 4),
        ("fp16", {"kind": "mean", "num_last": None}, 64 * 2 * 3),
    ],
)
def test_states_take_their_numbers_of_each_token_of_their_stream(precision, selection, num_bytes):
    corpus = Stage(name="corpus", run="m:f", locations={"corpus": {}})
    other = Stage(name="other", run="m:f", locations={"corpus": {}})
    encoded = Stage(
        name="text", run="m:f", config={"streams": {"prlm": "source 0"}}, inputs={"corpus": corpus}
    )
    encoder = Stage(
        name="prlm",
        run="m:f",
        config={"prlm": {"model": {"d_model": 64, "num_layers": 3}}},
        inputs={"corpus": other},
        work=Work(100, 1000, 50_000),
    )
    drawn = Stage(name="random", run="m:f", inputs={"encoder": encoder}, keeps="weights")
    states = Stage(
        name="states",
        run="m:f",
        config={"precision": precision, "selection": selection},
        inputs={"encoded": encoded, "encoder": drawn},
        keeps="states",
    )
    sides = {name: TextSize(9, 9, number) for name, number in (("source 0", 6000), ("target", 9000))}
    corpora = {corpus.fingerprint: {"train": sides, "dev": {"source 0": TextSize(9, 9, 1000)}}}
    cost = cost_of([(states, 2)], {}, Resources(), corpora)
    assert cost.num_bytes / 2 == pytest.approx(7000 / 2.9 * num_bytes)
    means = cost_of([(replace(states, keeps="means"), 2)], {}, Resources(), corpora)
    assert (means.seconds, means.num_bytes < 4000) == (cost.seconds, True)
    assert cost_of([(drawn, 1)], {}, Resources()).num_bytes == 4 * 50_000


@pytest.mark.parametrize(
    ("batch", "num_tokens", "num_steps"),
    [
        # a line has 58 bytes of the source and 29 of the target, a token 2.9 with a vocabulary of 1,000
        ({"batch_sentences": 10}, 150, 100),
        ({"batch_sentences": 10, "accumulation": 2}, 300, 100),
        ({"batch_characters": 580}, 210, 100),  # .7 of 20 lines of 29 characters
        ({"batch_sentences": 500}, 1500, 100),  # there are 100
        ({"batch_tokens": 700}, 700, 100),
        ({"batch_sentences": 10, "accumulation": 2, "max_epochs": 3}, 300, 15),
        ({"batch_tokens": 700, "max_epochs": 7}, 700, 15),
    ],
)
def test_what_batches_and_epochs_hold_is_counted_in_the_text(batch, num_tokens, num_steps):
    corpus = Stage(name="corpus", run="m:f", locations={"corpus": {}})
    sides = {"source 0": TextSize(100, 2900, 5800), "target": TextSize(100, 1450, 2900)}
    sides |= {"label": TextSize(100, 100, 100)}
    trained = Stage(
        name="trained",
        run="m:f",
        config={"train": batch, "model": {"vocab_size": 1000}},
        inputs={"corpus": corpus},
        work=Work(None if "max_epochs" in batch else 100, 700, 1_000_000),
    )
    cost = cost_of([(trained, 1)], {}, Resources(), {corpus.fingerprint: {"train": sides}})
    assert cost.seconds == pytest.approx(num_steps * (0.02 + 6 * 1.6e6 * num_tokens / 7e10), rel=1e-2)
