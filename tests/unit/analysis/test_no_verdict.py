"""Comparisons on which no verdict may rest, whatever their p-values."""

from dataclasses import replace

import numpy as np
import pytest

from nlgraft.analysis.data.provenance import Provenance, crowded_stages
from nlgraft.pipeline.store import Manifest
from nlgraft.study.data.design import cells
from nlgraft.study.data.system import early_metrics

UPSTREAMS = {"b": {"upstream": "b", "arm": "patt_eg"}, "a": {"upstream": "a", "arm": "patt_eg"}, "none": {}}


def pretrained(make_study, run, store, **base):
    """Three cells: the baseline, a better one with its pretraining, a better one with another."""
    factors = {"arm": {"levels": UPSTREAMS, "baseline": "none"}}
    claims = [
        {
            "better": name,
            "worse": "none",
            "metric": "test/bleu",
            "source": "T1",
            "data": {"upstream.domain": "a"},
        }
        for name in ("a", "b")
    ]
    study = make_study(factors=factors, base={"segments": 200, **base}, claims=claims, seeds=[1, 2, 3, 4, 5])
    return run(study, store)


def test_one_pretraining_decides_nothing_between_cells_that_do_not_share_it(make_study, run, store):
    analysis = pretrained(make_study, run, store, upstream_seed=0)
    same, other = analysis.compare("a"), analysis.compare("b")
    assert (same.trained_once, same.open_because) == (("upstream",), "")
    assert (same.standing, analysis.claims[0].verdict) == ("better", "supported")
    assert analysis.claims[0].text == "supported for this one pretraining (upstream)"
    assert "On test/bleu, for this one pretraining (upstream): 1 cell better" in analysis.note()
    assert "On test/bleu, for this one pretraining (upstream): 1 cell better" in analysis.render("md")
    assert other.p <= 0.05
    assert (other.standing, other.open_because) == ("open", "one pretraining only")
    speed = analysis.compare("b", metric="test/sentences_per_s")
    assert speed.open_because != "one pretraining only", "weights change no speed"
    answer = analysis.claims[1]
    assert (answer.verdict, answer.seeds_more) == ("undecided", None)
    assert answer.text == "undecided: one pretraining only"
    # what no training changes is decided all the same
    assert analysis.compare("b", metric="test/length_saved").standing == "better"
    text = analysis.render("md")
    assert "arm=b: undecided, one pretraining only: upstream trained once for all seeds." in text
    assert "arm=a: the interval covers variation over seeds and segments; not covered: upstream" in text
    assert analysis.to_json()["cells"][1]["comparison"]["test/bleu"]["open_because"] == "one pretraining only"


def test_a_pretraining_per_seed_is_in_the_interval(make_study, run, store):
    analysis = pretrained(make_study, run, store, is_per_seed=True)
    assert analysis.compare("b").trained_once == ()
    assert analysis.compare("b").standing == "better"
    assert "Intervals cover variation over seeds and segments." in analysis.render("md")
    assert "one pretraining" not in analysis.render("md")


def declared(metric):
    """Claims that make the study declare its comparison on a metric."""
    return [{"better": "patt_eg", "worse": "random_init", "metric": metric, "source": "our hypothesis"}]


def stage_of(fingerprint, host, started_at, duration_s):
    return Manifest(
        name="train", fingerprint=fingerprint, version=1, run="", config={}, inputs={}, seed=1, files={},
        location="",
        host=host, versions={}, started_at=started_at, duration_s=duration_s,
    )  # fmt: skip


def test_stages_that_overlap_on_one_machine_are_crowded():
    crowded = crowded_stages(
        [
            stage_of("long", "a", 0.0, 100.0),
            stage_of("inside", "a", 10.0, 5.0),
            stage_of("after", "a", 100.01, 5.0),
            stage_of("elsewhere", "b", 10.0, 5.0),
            stage_of("touching", "a", 105.0, 5.0),
        ]
    )
    assert crowded == {"long", "inside"}


@pytest.mark.parametrize("metric", ["dev/loss", "dev/loss.auc", "test/ter"])
def test_losses_per_token_of_different_vocabularies_get_no_verdict(make_small_study, scored, metric):
    study = make_small_study(claims=declared(metric))
    losses = {"random_init": [5.0, 5.1, 4.95], "patt_eg": [2.0, 2.3, 1.9]}
    lengths = {"random_init": 14.9, "patt_eg": 21.7}

    def verdict(lengths, num_lost=0):
        arms = {cell.label: cell.levels["arm"] for cell in cells(study)}
        values = {
            label: {metric: losses[arm], "dev/reference_length": [lengths[arm]] * 3}
            for label, arm in arms.items()
        }
        analysis = scored(study, values)
        for trial in analysis.cells[1].trials[:num_lost]:  # means over two and over three seeds round unlike
            del trial.record.metrics["dev/reference_length"]
        metrics = analysis.system.metrics
        counted = {"dev/loss": replace(metrics["dev/loss"], counted_by="dev/reference_length")}
        analysis.system = replace(analysis.system, metrics={**metrics, **counted, **early_metrics(counted)})
        return analysis.compare("patt_eg", metric=metric).standing

    assert verdict(dict.fromkeys(lengths, 14.9)) == "better"
    assert verdict(dict.fromkeys(lengths, 0.1), num_lost=1) == "better"
    assert verdict(lengths) == ("better" if metric == "test/ter" else "open")
    unknown = verdict(dict.fromkeys(lengths, 14.9), num_lost=3)
    assert unknown == ("better" if metric == "test/ter" else "open"), "counts that are not on record"


@pytest.mark.parametrize("length", [14.9, 21.7])
def test_learning_curves_of_unlike_vocabularies_are_marked(make_small_study, scored, length):
    study = make_small_study()
    lengths = {"baseline": [14.9] * 3, "arm=patt_eg": [length] * 3}
    result = scored(study, {label: {"dev/reference_length": values} for label, values in lengths.items()})
    for trial in (trial for cell in result.cells for trial in cell.trials):
        trial.record.curves["dev/loss"] = [[0, 9.0, 0], [50, 2.0, 0]]
    loss = replace(result.system.metrics["dev/loss"], counted_by="dev/reference_length")
    result.system = replace(result.system, metrics={**result.system.metrics, "dev/loss": loss})
    marked = "dev/loss: tokens of different vocabularies, curves of cells cannot be compared"
    assert (marked in result.render("html")) == (length != 14.9)


@pytest.mark.parametrize("is_crowded", [True, False])
def test_speeds_of_trials_that_ran_beside_others_get_no_verdict(make_small_study, scored, is_crowded):
    study = make_small_study(claims=declared("test/sentences_per_s"))
    speeds = {"random_init": [1.0, 1.1, 0.95], "patt_eg": [9.0, 9.2, 8.8]}
    analysis = scored(
        study,
        {cell.label: {"test/sentences_per_s": speeds[cell.levels["arm"]]} for cell in cells(study)},
    )
    for cell in analysis.cells:
        for trial in cell.trials:
            trial.record.stages = [{"fingerprint": trial.fingerprint}]
    if is_crowded:
        analysis.provenance = Provenance(crowded=frozenset({analysis.cells[1].trials[0].fingerprint}))
    compared = analysis.compare("patt_eg", metric="test/sentences_per_s")
    assert compared.standing == ("open" if is_crowded else "better")
    assert any("timed beside other stages" in note for note in compared.notes) == is_crowded


def test_seeds_whose_differences_tie_by_chance_get_no_verdict(make_small_study, scored):
    """Their noise is unknown, and that of the test set alone would make a star of any difference."""
    study = make_small_study(seeds=[1, 2], claims=declared("test/accuracy"))
    rows = np.array([[float(index % 2), 1.0] for index in range(400)])

    def judged(values):
        result = scored(study, {label: {"test/accuracy": each} for label, each in values.items()})
        for trial in (trial for cell in result.cells for trial in cell.trials):
            trial.segments["test/accuracy"] = rows * [trial.metrics["test/accuracy"] / 50, 1.0]
        return result.compare("arm=patt_eg", metric="test/accuracy")

    tied = judged({"baseline": [38.5, 39.0], "arm=patt_eg": [24.1, 24.6]})
    assert tied.estimate.variance == 0
    assert (tied.standing, tied.open_because) == ("open", "the same difference for every seed")
    untrained = judged({"baseline": [38.5, 38.5], "arm=patt_eg": [24.1, 24.1]})
    assert untrained.standing == "worse", "what no seed changes is tested over the test set"
