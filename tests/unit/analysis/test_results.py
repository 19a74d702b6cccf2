"""The result of a study: collecting from the store, Holm families, unfinished and failed cells, JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest

from nlgraft.analysis.data.provenance import Provenance, crowded_stages
from nlgraft.analysis.data.results import Invocation
from nlgraft.analysis.rendering import prose
from nlgraft.analysis.statistics.sensitivity import sensitivities
from nlgraft.analysis.study_result import StudyResult
from nlgraft.errors import NlgraftError, StudyError
from nlgraft.pipeline.store import ArtifactStore, Manifest
from nlgraft.study.data.design import cells
from nlgraft.study.data.metric import early_metrics
from nlgraft.study.public import Study

ARMS = ["random_init", "single_run", "avg_eg", "att_eg", "patt_eg"]


def test_all_trials_are_found_with_their_statistics(result):
    assert [cell.cell.label for cell in result.cells] == ["baseline", *(f"arm={arm}" for arm in ARMS[1:])]
    assert {trial.state for trial in result.trials} == {"finished"}
    assert {cell.state for cell in result.cells} == {"finished"}
    assert result.trials[0].segments["test/bleu"].shape == (40, 10)
    assert list(result.metrics) == [
        "test/bleu", "test/accuracy", "dev/bleu", "test/reference_length", "test/length_saved",
        "dev/reference_length", "test/sentences_per_s", "dev/loss.auc", "dev/loss.steps_to_baseline",
    ]  # fmt: skip
    assert result.main_metric == "test/bleu"
    assert result.is_constructed


def test_a_result_says_in_a_few_lines_what_it_is_and_what_to_call_next(result):
    first, cells, after = repr(result).splitlines()
    assert first == "Result of made-up-table2: 5 cells x 3 seeds, 15 trials: 15 finished"
    assert cells == "  cells: baseline, arm=single_run, arm=avg_eg, arm=att_eg, arm=patt_eg"
    assert ".compare(cell, metric='test/bleu')" in after
    assert len(repr(result.cells[0])) < 2000
    assert len(repr(result.trials[0].record)) < 1000
    table = result._repr_html_()
    assert "<caption>made-up-table2: test/bleu</caption>" in table
    assert table.count("<tr>") == 6


def test_compare_takes_the_names_that_people_use(result):
    by_level = result.compare("patt_eg", "baseline", metric="test/bleu")
    assert by_level == result.compare("arm=patt_eg")
    values = [result.cell(name).measured("test/bleu") for name in ("patt_eg", "random_init")]
    differences = [values[0][seed].value - values[1][seed].value for seed in (1, 2, 3)]
    assert by_level.difference == pytest.approx(np.mean(differences))
    assert by_level.num_segments == 40


def test_holm_goes_over_all_cells_and_claims_of_a_metric(result):
    family = [result.compare(arm) for arm in ARMS[1:]]
    family.append(result.compare("patt_eg", "att_eg"))  # claimed, hence one of them
    family.append(result.claims[-1].comparison)  # against a published figure
    smallest = min(family, key=lambda one: one.p)
    assert smallest.p_holm == pytest.approx(min(1, 6 * smallest.p))
    assert all(one.p_holm >= one.p for one in family)
    num_open = sum(one.p_holm > 0.05 for one in family)
    assert {one.level for one in family} == {0.05 / num_open}
    outside = result.compare("avg_eg", "att_eg")
    assert outside.basis == "afterthought"
    assert any("not in the family 'all_cells'" in note for note in outside.notes)


def test_the_family_of_claims_leaves_other_cells_uncorrected(make_study, result):
    settings = {"family": "claims"}
    study = make_study(analysis=settings)
    claimed = type(result)(study, result.system, result.cells, result.provenance)
    assert claimed.compare("avg_eg").p_holm is None
    raw = sorted(
        claimed.compare(*pair).p
        for pair in [("patt_eg", "baseline"), ("patt_eg", "att_eg"), ("single_run", "baseline")]
    )
    assert min(claimed.compare(arm).p_holm for arm in ("patt_eg", "single_run")) == pytest.approx(4 * raw[0])


def test_samples_grow_with_the_family(make_study, scored):
    """With 1,000 resamples no p is below 1 / 1001, which Holm multiplies by sixty."""
    arms = [f"a{index}" for index in range(61)]
    factors = {"arm": {"target": "arm", "levels": arms, "baseline": "a0"}}
    study = make_study(factors=factors, published=[], claims=[], seeds=[1, 2, 3, 4, 5])
    rng = np.random.default_rng(0)
    scores = {cell.label: {"test/bleu": 30 + 0.1 * rng.standard_normal(5)} for cell in cells(study)}
    scores["arm=a7"]["test/bleu"] += 20
    found = scored(study, scores)
    assert found.samples == 10 * 60 / 0.05
    assert found.standing(found.compare("a7")) == "better"
    assert f"{found.samples:,} times" in " ".join(prose.method(found))
    assert found.to_json()["analysis"]["samples"] == found.samples


ARM = {"target": "arm", "levels": ["random_init", "patt_eg"], "baseline": "random_init"}
LR = {"target": "lr", "levels": [1e-3, 1e-2], "baseline": 1e-3}
TABLE = {
    "source": "T1",
    "metric": "test/bleu",
    "signature": "tok:13a",
    "data": {"corpus": "files"},
    "values": {"baseline": 30.0, "patt_eg": 31.0, "lr=0.01": 30.0, "arm=patt_eg, lr=0.01": 36.0},
}


@pytest.fixture
def crossed(make_study, scored):
    """Four cells of five seeds each, with means 30.1, 31, 30 and 36 and hardly any noise."""
    study = make_study(
        data={"corpus": "files"},
        factors={"arm": ARM, "lr": LR},
        design={"kind": "full"},
        published=[TABLE],
        claims=[
            {"better": "patt_eg", "worse": "baseline"},
            {"better": "lr=0.01", "worse": "baseline", "margin": 0.5},
            {
                "better": "baseline",
                "worse": "lr=0.01",
                "metric": "test/bleu",
                "source": "text",
                "data": {"corpus": "f*"},
                "margin": 0.02,
            },
            {"better": "arm=patt_eg, lr=0.01", "worse": "lr=0.01", "exceeds": ["patt_eg", "baseline"]},
            {"cell": "baseline", "margin": 1.0},
            {"cell": "patt_eg", "margin": 0.0001},
        ],
        analysis={"family": "claims"},
        seeds=[1, 2, 3, 4, 5],
    )
    rng = np.random.default_rng(3)
    means = {"baseline": 30.1, "arm=patt_eg": 31, "lr=0.01": 30, "arm=patt_eg, lr=0.01": 36}
    noise = {label: 0.01 * rng.standard_normal(5) for label in means}
    return scored(study, {label: {"test/bleu": mean + noise[label]} for label, mean in means.items()})


def test_claims_of_every_kind_are_one_family(crossed):
    answers = crossed.claims
    assert [answer.verdict for answer in answers] == ["supported"] * 5 + ["undecided"]
    assert all(answer.comparison.p_holm >= answer.comparison.p for answer in answers)
    assert answers[1].comparison.null == -0.5
    assert answers[3].comparison.difference == pytest.approx((36 - 30) - (31 - 30.1), abs=0.05)
    assert answers[4].comparison.difference == pytest.approx(0.1, abs=0.02)
    smallest = min(answer.comparison.p for answer in answers)
    assert min(answer.comparison.p_holm for answer in answers) == pytest.approx(6 * smallest)


def test_a_claim_within_a_cell_is_paired_by_seed_and_segment(make_study, store, run):
    """A cell against itself on another metric: both are means over the same trials and the same lines."""
    claims = [
        {"better": "patt_eg", "worse": "patt_eg", "metric": "test/bleu", "worse_metric": "dev/bleu"},
        {"better": "patt_eg", "worse": "random_init", "metric": "test/bleu", "worse_metric": "dev/bleu"},
    ]
    claims = [claim | {"source": "ours", "data": {"upstream.domain": "a"}} for claim in claims]
    found = run(make_study(claims=claims, published=[], analysis={"family": "claims"}), store)
    patt, start = found.cell("patt_eg"), found.cell("random_init")
    within, across = found.claims
    test, dev = patt.mean("test/bleu"), patt.mean("dev/bleu")
    assert within.ours == (test, dev)
    assert within.comparison.difference == pytest.approx(test - dev)
    assert within.comparison.scope == "seeds and segments"
    assert across.ours == (test, start.mean("dev/bleu"))
    smallest = min(within.comparison, across.comparison, key=lambda found: found.p)
    assert smallest.p_holm == pytest.approx(2 * smallest.p)
    assert "patt_eg's test/bleu better than patt_eg's dev/bleu" in found.render("md")


def test_no_format_sets_a_figure_beside_other_data(make_study, scored, crossed):
    study = make_study(**{**crossed.study.to_dict(), "data": {"corpus": "conlang"}})
    scores = {
        cell.cell.label: {"test/bleu": [one.value for one in cell.measured("test/bleu").values()]}
        for cell in crossed.cells
    }
    found = scored(study, scores)
    assert [answer.verdict for answer in found.claims] == ["same direction"] * 4 + ["undecided"] * 2
    assert all("supported" not in claim["answer"] for claim in found.to_json()["claims"])
    assert all(claim["figures"] == [] for claim in found.to_json()["claims"])
    assert "36.00 against 30.00; 31.00 against 30.00" not in found.render("md")
    for kind in ("md", "html", "latex"):
        assert "same direction, other data" in found.render(kind)
    assert "same direction, other data" in found.note()
    assert "other data: corpus is conlang, the paper's is files" in found.render("md")


def test_claims_of_every_kind_are_told_in_every_format(crossed):
    text = crossed.render("md")
    assert "lr=0.01 no worse than baseline on test/bleu by more than 0.5 | T1 | supported" in text
    assert "36.00 against 30.00; 31.00 against 30.10 (" in text
    assert "36.00 against 30.00; 31.00 against 30.00 (+5.00)" in text
    assert "within 1 of the published figure, significant at 0.05" in text
    assert "prediction interval" in text
    assert crossed.render("latex").isascii()
    assert crossed.to_json()["claims"][4]["figures"] == [30.0]


def test_without_correction_p_decides(make_study, result):
    study = make_study(analysis={"correction": "none"})
    plain = type(result)(study, result.system, result.cells, result.provenance)
    assert plain.compare("single_run").p_holm is None
    assert plain.compare("single_run").notes == ()
    assert "p (Holm)" not in plain.comparison().header


def test_an_unknown_metric_or_cell_is_named_with_the_nearest(result):
    with pytest.raises(NlgraftError, match=r"no metric 'test/blue'. Did you mean 'test/bleu'"):
        result.compare("patt_eg", metric="test/blue")
    with pytest.raises(StudyError, match="patt_eg"):
        result.compare("pat_eg")


def test_further_test_sets_and_the_mean_over_all_are_metrics(make_small_study, store, run):
    further = {"downstream": {"corpus": "huggingface", "splits": {"test_2017": "test2017", "test_18": "x"}}}
    on_tests = {
        "better": "patt_eg",
        "worse": "random_init",
        "metric": ["tests/bleu", "test_18/bleu"],
        "source": "ours",
    }
    study = make_small_study(data=further, claims=[on_tests], seeds=[1, 2])
    found = run(study, store)
    for trial in found.trials:
        scores = [trial.metrics[f"{split}/bleu"] for split in ("test", "test_2017", "test_18")]
        assert len(set(scores)) == 3, "the made-up system draws other noise for every split's name"
        assert trial.metrics["tests/bleu"] == pytest.approx(sum(scores) / 3)
        assert len(trial.segments["test_2017/bleu"]) == 40
    assert {answer.claim.metric for answer in found.claims} == {"tests/bleu", "test_18/bleu"}
    assert "tests/sentences_per_s" not in found.metrics
    assert "test_2017/sentences_per_s" not in found.metrics, "which this system measures on test alone"


def test_the_order_of_cells_changes_no_figure(make_study, result, run, tmp_path):
    """The order of cells does not matter; the trials come from another store."""
    factors = {"arm": {"target": "arm", "levels": ARMS[::-1], "baseline": "random_init"}}
    turned = run(make_study(factors=factors), ArtifactStore.open(tmp_path))
    ours = {cell["label"]: cell for cell in result.to_json()["cells"]}
    theirs = {cell["label"]: cell for cell in turned.to_json()["cells"]}
    for label, cell in ours.items():
        assert without_times(theirs[label]) == without_times(cell)


def without_times(cell):
    drop = {"test/sentences_per_s"}
    return {
        key: {name: found for name, found in part.items() if name not in drop} if key != "cell" else part
        for key, part in cell.items()
        if isinstance(part, dict)
    }


def test_the_json_keeps_the_contract(result):
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert set(document) >= {
        "study", "fingerprint", "baseline", "cells", "claims", "report_dir", "tracking_uri", "experiment",
        "trials",
    }  # fmt: skip
    assert document["baseline"] == {"arm": "random_init"}
    assert document["experiment"] == "made-up-table2"
    assert document["trials"] == {"run": 0, "reused": 15, "failed": 0}
    baseline, first = document["cells"][:2]
    assert "comparison" not in baseline
    assert first["cell"] == {"arm": "single_run"}
    assert first["state"] == "finished"
    assert set(first["metrics"]["test/bleu"]) >= {"mean", "std", "n", "values"}
    assert len(first["metrics"]["test/bleu"]["values"]) == 3
    assert set(first["comparison"]["test/bleu"]) >= {
        "difference", "ci", "p", "p_holm", "smallest_detectable"
    }  # fmt: skip
    assert set(document["claims"][0]) >= {"text", "source", "verdict", "figures"}


def test_an_invocation_says_what_it_did(result):
    fresh = type(result)(result.study, result.system, result.cells, result.provenance)
    fresh.invocation = Invocation(2, 13, 1, "out", "http://me:secret@host", "mine")
    document = fresh.to_json()
    assert document["trials"] == {"run": 2, "reused": 13, "failed": 1}
    assert (document["report_dir"], document["tracking_uri"], document["experiment"]) == (
        "out", "http://me:***@host", "mine"
    )  # fmt: skip


def test_nothing_has_run_yet(make_small_study, store):
    empty = StudyResult.read(make_small_study(), store)
    assert {cell.state for cell in empty.cells} == {"planned"}
    assert empty.metrics == {}
    assert empty.best() is None
    assert {claim.verdict for claim in empty.claims} == {"not run"}
    assert empty.compare("patt_eg").difference is None
    assert empty.to_json()["cells"][1]["metrics"] == {}
    assert len(empty.frame()) == 6


def test_a_failed_trial_leaves_the_other_seeds(make_small_study, store, run):
    found = run(make_small_study(base={"fails_with_seed": 2}, seeds=[1, 2, 3]), store)
    cell = found.cell("patt_eg")
    assert cell.state == "failed"
    assert cell.reasons == ["seed 2: finetune: RuntimeError: CUDA out of memory, as it were"]
    assert found.compare("patt_eg").seeds == (1, 3)
    document = found.to_json()
    assert document["trials"] == {"run": 0, "reused": 4, "failed": 2}
    assert document["cells"][1]["metrics"]["test/bleu"]["seeds"] == [1, 3]


def test_trials_that_have_not_run_are_planned(make_small_study, store, run):
    found = run(make_small_study(), store, skip={("arm=patt_eg", 2), ("arm=patt_eg", 3)})
    assert found.cell("patt_eg").state == "planned"
    one = found.compare("patt_eg")
    assert one.scope == "segments"
    assert one.num_seeds == 1
    assert one.notes[0] == "seeds 2, 3 finished in only one of the two cells"
    assert found.claims[0].text == "undecided (1 seed more)"


def test_a_trial_whose_stage_is_being_computed_is_running(make_small_study, store):
    found = StudyResult.read(make_small_study(), store)
    upstream = found.system.stage_graph(
        found.system.config_type(), seed=1, splits=("dev", "test")
    ).find("upstream")  # fmt: skip
    with store.leases.acquire(upstream.fingerprint):
        assert {trial.state for trial in StudyResult.read(make_small_study(), store).trials} == {"running"}


def test_one_seed_is_compared_over_segments_only(make_small_study, store, run):
    found = run(make_small_study(seeds=[1]), store)
    assert found.compare("patt_eg").scope == "segments"
    assert found.to_json()["cells"][0]["metrics"]["test/bleu"]["std"] is None
    assert all(claim.verdict == "undecided" for claim in found.claims)


def test_records_without_artifacts_still_have_their_scores(make_small_study, store, run):
    before = run(make_small_study(), store)
    for trial in before.cell("patt_eg").trials:
        graph = before.system.stage_graph(
            before.system.config_type(arm="patt_eg"), seed=trial.seed, splits=("dev", "test")
        )
        assert graph.fingerprint == trial.fingerprint
        store.discard(graph.result)
    after = StudyResult.read(make_small_study(), store)
    assert after.compare("patt_eg").difference == before.compare("patt_eg").difference
    assert after.compare("patt_eg").scope == "seeds"


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
    study = make_study(
        factors=factors, base={"segments": 200, **base}, published=[], claims=claims, seeds=[1, 2, 3, 4, 5]
    )
    return run(study, store)


def test_one_pretraining_decides_nothing_between_cells_that_do_not_share_it(make_study, run, store):
    found = pretrained(make_study, run, store, upstream_seed=0)
    same, other = found.compare("a"), found.compare("b")
    assert (same.trained_once, same.open_because) == (("upstream",), "")
    assert (found.standing(same), found.claims[0].verdict) == ("better", "supported")
    assert found.claims[0].text == "supported for this one pretraining (upstream)"
    assert "On test/bleu, for this one pretraining (upstream): 1 cell better" in found.note()
    assert "On test/bleu, for this one pretraining (upstream): 1 cell better" in found.render("md")
    assert other.p <= 0.05
    assert (found.standing(other), other.open_because) == ("open", "one pretraining only")
    speed = found.compare("b", metric="test/sentences_per_s")
    assert speed.open_because != "one pretraining only", "weights change no speed"
    answer = found.claims[1]
    assert (answer.verdict, answer.seeds_more) == ("undecided", None)
    assert answer.text == "undecided: one pretraining only"
    # what no training changes is decided all the same
    assert found.standing(found.compare("b", metric="test/length_saved")) == "better"
    text = found.render("md")
    assert "arm=b: undecided, one pretraining only: upstream trained once for all seeds." in text
    assert "arm=a: the interval covers variation over seeds and segments; not covered: upstream" in text
    assert found.to_json()["cells"][1]["comparison"]["test/bleu"]["open_because"] == "one pretraining only"


def test_a_pretraining_per_seed_is_in_the_interval(make_study, run, store):
    found = pretrained(make_study, run, store, is_per_seed=True)
    assert found.compare("b").trained_once == ()
    assert found.standing(found.compare("b")) == "better"
    assert "Intervals cover variation over seeds and segments." in found.render("md")
    assert "one pretraining" not in found.render("md")


def test_a_published_figure_is_not_predicted_from_one_pretraining(make_study, run, store):
    column = {"source": "T1", "metric": "test/bleu", "data": {"upstream.domain": "a"}, "signature": "tok:13a"}
    study = make_study(
        base={"upstream_seed": 0},
        published=[column | {"values": {"random_init": 30.0}}],
        claims=[{"cell": "random_init", "margin": 1000.0}],
    )
    assert run(study, store).claims[0].text == "undecided: one pretraining only"


def test_the_frame_has_one_row_per_trial(result):
    frame = result.frame()
    assert len(frame) == 15
    assert list(frame["factor.arm"].unique()) == ARMS
    means = frame.groupby("factor.arm")["test/bleu"].mean()
    assert means["patt_eg"] == pytest.approx(result.cell("patt_eg").mean("test/bleu"))
    assert frame["fingerprint"].is_unique


def test_best_is_chosen_on_the_objective(result):
    best = result.best()
    assert best.metrics["dev/bleu"] == max(trial.metrics["dev/bleu"] for trial in result.trials)
    assert result.best("single_run").cell.label == "arm=single_run"
    assert best.config["arm"] == best.cell.levels["arm"]


def test_shared_stages_are_counted_once(result):
    facts = result.provenance
    assert facts.num_stages == 45
    assert facts.num_distinct == 31  # one upstream, 15 finetunings, 15 scorings
    assert facts.computed_s > 0
    assert facts.versions["python"]


@pytest.fixture(scope="module")
def searched(make_study, run, tmp_path_factory):
    study = make_study(
        search={"space": {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}}, "trials": 4},
        factors={"arm": {"target": "arm", "levels": ARMS[:2], "baseline": ARMS[0]}},
        published=[],
        claims=[],
    )
    return run(study, ArtifactStore.open(tmp_path_factory.mktemp("searched")))


def test_the_best_search_trial_on_dev_is_replicated(searched):
    cell = searched.cell("single_run")
    assert [trial.kind for trial in cell.search] == ["search"] * 4
    scores = [trial.metrics["dev/bleu"] for trial in cell.search]
    assert dict(cell.params) == dict(cell.search[int(np.argmax(scores))].params)
    assert all(trial.params == cell.params for trial in cell.trials)
    assert all("test/bleu" not in trial.metrics for trial in cell.search)
    assert searched.to_json()["cells"][0]["search"]["finished"] == 4
    assert len(searched.frame()) == 2 * (4 + 3)


def test_an_unfinished_search_leaves_the_replicates_planned(searched, store):
    study = Study.from_dict({**searched.study.to_dict(), "seeds": [9]})
    cell = StudyResult.read(study, store).cells[0]
    assert cell.state == "planned"
    assert cell.notes == ("0 of 4 search trials have ended",)


def test_the_pareto_set_of_two_objectives(searched):
    cell = searched.cells[0]
    objective = searched.study.objectives[0]
    other = objective.model_copy(update={"direction": "minimize"})
    assert len(cell.pareto([objective])) == 1
    assert len(cell.pareto([objective, other])) == 4  # what is better for one is worse for the other


def stage_of(fingerprint, host, started_at, duration_s):
    return Manifest(
        name="train", fingerprint=fingerprint, version=1, run="", config={}, inputs={}, seed=1, files={},
        location="",
        host=host, versions={}, started_at=started_at, duration_s=duration_s,
    )  # fmt: skip


def test_stages_that_overlap_on_one_machine_are_crowded():
    found = crowded_stages(
        [
            stage_of("long", "a", 0.0, 100.0),
            stage_of("inside", "a", 10.0, 5.0),
            stage_of("after", "a", 100.01, 5.0),
            stage_of("elsewhere", "b", 10.0, 5.0),
            stage_of("touching", "a", 105.0, 5.0),
        ]
    )
    assert found == {"long", "inside"}


@pytest.mark.parametrize("metric", ["dev/loss", "dev/loss.auc", "test/ter"])
def test_losses_per_token_of_different_vocabularies_get_no_verdict(make_small_study, scored, metric):
    study = make_small_study(claims=[])
    losses = {"random_init": [5.0, 5.1, 4.95], "patt_eg": [2.0, 2.3, 1.9]}
    lengths = {"random_init": 14.9, "patt_eg": 21.7}

    def verdict(lengths, num_lost=0):
        arms = {cell.label: cell.levels["arm"] for cell in cells(study)}
        values = {
            label: {metric: losses[arm], "dev/reference_length": [lengths[arm]] * 3}
            for label, arm in arms.items()
        }
        found = scored(study, values)
        for trial in found.cells[1].trials[:num_lost]:  # means over two and over three seeds round unlike
            del trial.record.metrics["dev/reference_length"]
        metrics = found.system.metrics
        counted = {"dev/loss": replace(metrics["dev/loss"], counted_by="dev/reference_length")}
        found.system = replace(found.system, metrics={**metrics, **counted, **early_metrics(counted)})
        return found.standing(found.compare("patt_eg", metric=metric))

    assert verdict(dict.fromkeys(lengths, 14.9)) == "better"
    assert verdict(dict.fromkeys(lengths, 0.1), num_lost=1) == "better"
    assert verdict(lengths) == ("better" if metric == "test/ter" else "open")


@pytest.mark.parametrize("is_crowded", [True, False])
def test_speeds_of_trials_that_ran_beside_others_get_no_verdict(make_small_study, scored, is_crowded):
    study = make_small_study(claims=[])
    speeds = {"random_init": [1.0, 1.1, 0.95], "patt_eg": [9.0, 9.2, 8.8]}
    found = scored(
        study,
        {cell.label: {"test/sentences_per_s": speeds[cell.levels["arm"]]} for cell in cells(study)},
    )
    for cell in found.cells:
        for trial in cell.trials:
            trial.record.stages = [{"fingerprint": trial.fingerprint}]
    if is_crowded:
        found.provenance = Provenance(crowded=frozenset({found.cells[1].trials[0].fingerprint}))
    compared = found.compare("patt_eg", metric="test/sentences_per_s")
    assert found.standing(compared) == ("open" if is_crowded else "better")
    assert any("timed beside other stages" in note for note in compared.notes) == is_crowded


@pytest.fixture
def family(make_study, scored):
    """Four arms and three claims of which one is between arms: five questions on test/bleu."""
    study = make_study(
        claims=[
            {"better": "patt_eg", "worse": "random_init", "metric": "test/bleu", "source": "a table"},
            {"better": "patt_eg", "worse": "avg_eg", "metric": "test/bleu", "source": "a table"},
            {"better": "att_eg", "worse": "random_init", "metric": "test/bleu", "source": "a table"},
        ],
        published=[],
    )
    base = np.array([20.0, 20.3, 19.8])
    gaps = {
        "baseline": np.zeros(3), "arm=single_run": np.array([0.3, -0.2, 0.4]),
        "arm=avg_eg": np.array([0.8, 1.2, 1.1]), "arm=att_eg": np.array([0.5, 1.4, -0.3]),
        "arm=patt_eg": np.array([2.0, 2.2, 2.5]),
    }  # fmt: skip

    def build(ran=tuple(gaps), state="planned"):
        found = scored(study, {label: {"test/bleu": base + gap} for label, gap in gaps.items()})
        changed = [
            cell if cell.cell.label in ran
            else replace(cell, trials=tuple(
                replace(one, state=state, record=None, _measured={}) for one in cell.trials
            ))
            for cell in found.cells
        ]  # fmt: skip
        return replace(found, cells=tuple(changed))

    return build


@pytest.mark.parametrize("state", ["planned", "failed", "running"])
def test_what_has_not_run_or_failed_stays_in_the_family(family, state):
    """Running one arm of four with --only must not make its p-value smaller than the whole study's."""
    raw = family().compare("patt_eg").p
    whole, alone = family(), family(("baseline", "arm=patt_eg"), state)
    assert whole.compare("patt_eg").p_holm == pytest.approx(5 * raw)
    assert alone.compare("patt_eg").p_holm == pytest.approx(5 * raw)
    assert alone.compare("patt_eg").family == (5, 1)
    assert alone.compare("single_run").p_holm is None
    text = alone.render("md")
    assert "family of 5 questions, 1 tested" in text
    assert "5 tested" not in text
    assert "tested" not in whole.render("md").split("## Claims")[0]
    assert alone.to_json()["cells"][4]["comparison"]["test/bleu"]["family"] == {"declared": 5, "tested": 1}


def test_a_claim_about_cells_that_did_not_run_says_so(family):
    claims = family(("baseline", "arm=patt_eg")).claims
    assert [claim.text for claim in claims][1:] == ["not run", "not run"]
    assert "2 not run" in family(("baseline", "arm=patt_eg")).render("md")


def test_a_metric_that_a_finished_cell_does_not_have_asks_nothing_of_it(family):
    found = family()
    for trial in found.cells[1].trials:
        trial.record.metrics["test/accuracy"] = 1.0 + trial.seed
        del trial.record.metrics["test/bleu"]
    assert found.compare("patt_eg", metric="test/bleu").family == (4, 4)


def test_lines_of_one_document_are_drawn_together(make_small_study, run, store):
    study = make_small_study(base={"lines_per_document": 5}, claims=[], published=[])
    found = run(study, store)
    plain = run(make_small_study(claims=[], published=[]), store)
    by_line, by_document = (one.compare("patt_eg", metric="test/accuracy") for one in (plain, found))
    assert (by_line.num_segments, by_document.num_segments) == (40, 8)
    assert by_document.difference == by_line.difference
    # by hand: each document is one unit of the bootstrap
    rows = [
        plain.cell(name).trials[0].segments["test/accuracy"].reshape(8, 5, 2).sum(axis=1)
        for name in ("patt_eg", "baseline")
    ]
    own = found.cell("patt_eg").trials[0].segments["test/accuracy"]
    assert np.array_equal(own, rows[0])
    assert "resampled by document (8 documents)" in found.render("md")
    assert "by document" not in plain.render("md")
    # other scores of the same texts are resampled in the same way
    others = {one.choice: one for one in sensitivities(found).rows}
    assert set(others["tokenizer"].others) == {"with tok:intl", "with tok:char", "with tok:none"}
