"""The model of a training step on several workers, by hand."""

from dataclasses import replace
from math import pi, sqrt
from types import SimpleNamespace

import pytest

from nlgraft.pipeline.integrity import FileEntry
from nlgraft.pipeline.manifest import Manifest, describe_artifact
from nlgraft.pipeline.stage import Stage, Work
from nlgraft.pipeline.store import StageCost, TimedRun, text_bytes
from nlgraft.study.data.plan import StepTime, expected_maximum
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.cost import cost_of, step_times
from nlgraft.study.planning.planner import plan
from nlgraft.study.public import Study


@pytest.mark.parametrize("number, mean", [(1, 0.0), (2, 1 / sqrt(pi)), (3, 1.5 / sqrt(pi)), (8, 1.4236)])
def test_the_slowest_of_some_normal_draws(number, mean):
    """Closed forms, and the table of Teichroew (1956) for eight."""
    assert expected_maximum(number) == pytest.approx(mean, abs=1e-4)


def test_one_and_two_workers_are_what_was_measured_and_more_follow_the_formula():
    step = StepTime("training", one_s=0.8, two_s=0.55, line_s=0.1)  # so the slower is waited for 0.05 s
    assert step.parts(1) == pytest.approx({"compute": 0.8, "all-reduce": 0.0, "waiting": 0.0})
    assert step.parts(2) == pytest.approx({"compute": 0.4, "all-reduce": 0.1, "waiting": 0.05})
    assert step.parts(3) == pytest.approx({"compute": 0.8 / 3, "all-reduce": 0.4 / 3, "waiting": 0.075})
    assert "0.475 s (0.267 compute, 0.133 all-reduce, 0.075 waiting), 1.7 times as fast" in step.describe(3)


def test_without_a_time_of_two_workers_it_says_so_and_nobody_waits():
    step = StepTime("training", one_s=0.8, two_s=None, line_s=0.1)
    assert step.parts(8) == pytest.approx({"compute": 0.1, "all-reduce": 0.175, "waiting": 0.0})
    assert step.describe(8).endswith("0.8 s with one worker, not timed with two workers")


def test_two_on_one_machine_may_be_quicker_than_a_line_between_them():
    assert StepTime("training", one_s=0.8, two_s=0.41, line_s=0.1).parts(2)["waiting"] == 0.0


def training(**options):
    return Stage(name="training", run="m:f", config={}, is_distributed=True, work=Work(**options))


def test_a_step_is_a_share_of_a_stage_s_time_and_gradients_are_as_large_as_the_weights():
    stage = training(num_steps=100, tokens_per_step=1000, num_parameters=12_500_000)
    costs = {"training": StageCost(70.0, 1.0, 3, {1: 80.0, 2: 50.0, 4: 1.0})}
    [step] = step_times([stage, stage], costs)
    assert step == StepTime(
        "training", one_s=0.8, two_s=0.5, line_s=pytest.approx(0.04)
    )  # 400 Mbit, 10 Gbit/s
    assert step_times([stage], {"training": StageCost(70.0, 1.0, 3, {2: 50.0})}) == []
    assert step_times([training(num_steps=None, tokens_per_step=9, num_parameters=9)], costs) == []


def test_a_plan_without_such_times_says_what_is_missing(study: Study):
    store = SimpleNamespace(finished=lambda fingerprints: set(), durations=dict)
    notes = plan(study, store, num_nodes=8).notes
    assert [note for note in notes if note.startswith("no step on 8 nodes is modelled: the store has no")]


def test_a_plan_shows_measured_and_modelled_times_and_what_is_assumed(study: Study, monkeypatch):
    step = StepTime("finetune", one_s=0.8, two_s=0.55, line_s=0.1)
    monkeypatch.setattr("nlgraft.study.planning.planner.step_times", lambda stages, costs: [step])
    planned = plan(study, num_nodes=3)
    assert dict(planned.facts())["step of finetune, 3 nodes"] == step.describe(3)
    assert planned.to_json()["step_times"] == [step.to_json(3)]
    [assumed] = [note for note in planned.notes if "modelled" in note]
    assert "10 Gbit/s" in assumed


def manifest_of(stage: Stage, seconds: float, *, inputs=(), files=None, workers=1) -> Manifest:
    manifest = describe_artifact(
        stage, files or {}, started_at=0, duration_s=seconds, reason="", num_workers=workers
    )
    return replace(
        manifest, bytes=1000, inputs={str(number): upstream for number, upstream in enumerate(inputs)}
    )


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 1.0),
        ({"num_steps": 6000}, 60.0),
        # 100 steps of 0.02 s and 6 * 1.6e6 * 1000 / 1e11 = 0.096 s
        ({"tokens_per_step": 3000}, 0.308 / 0.116),
        ({"num_parameters": 2_000_000}, 0.176 / 0.116),
        ({"max_workers": 2}, 0.068 / 0.116),
    ],
)
def test_a_training_is_scaled_by_steps_tokens_weights_and_workers(changes, factor):
    size = {"num_steps": 100, "tokens_per_step": 1000, "num_parameters": 1_000_000}
    run = manifest_of(training(**size), 70.0)
    costs = {"training": StageCost(70.0, 1000.0, 1, {}, (TimedRun(run, None),))}
    workers = changes.pop("max_workers", 1)
    planned = training(**(size | changes))
    cost = cost_of([(planned, 2)], costs, Resources(workers=workers))
    assert cost.seconds == pytest.approx(2 * 70 * factor)
    assert cost.num_bytes == pytest.approx(2 * 1000 * changes.get("num_parameters", 1_000_000) / 1_000_000)
    assert cost.scaled == (("training",) if factor != 1 else ())


def test_the_run_that_is_nearest_in_size_counts_and_a_gpu_is_no_cpu():
    sizes = {100: 10.0, 1000: 400.0}
    runs = [(training(num_steps=steps, tokens_per_step=9, num_parameters=9), s) for steps, s in sizes.items()]
    costs = {"training": StageCost(1.0, 1.0, 2, {}, tuple(TimedRun(manifest_of(*run), None) for run in runs))}
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
    costs = {"translation": StageCost(2.3, 1000.0, 1, {}, (TimedRun(run, text_bytes(run, manifests)),))}
    corpora = {corpus.fingerprint: {"train": 10**6, "dev": 100, "test": 1000}}
    cost = cost_of([(test, 1)], costs, Resources(), corpora)
    assert cost.seconds == pytest.approx(0.3 + 2.0 * 10)
    assert cost.scaled == ("translation",)
