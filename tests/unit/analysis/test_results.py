"""The result of a study: collecting from the store, unfinished and failed cells, JSON."""

import json

import numpy as np
import pytest

from nlgraft.analysis.data.results import Invocation
from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.errors import NlgraftError, StudyError
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.public import Study

ARMS = ["random_init", "single_run", "avg_eg", "att_eg", "patt_eg"]
CLAIMS = [{"better": "patt_eg", "worse": "random_init"}]


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
    values = [result.cell(name).values("test/bleu") for name in ("patt_eg", "random_init")]
    differences = [values[0][seed] - values[1][seed] for seed in (1, 2, 3)]
    assert by_level.difference == pytest.approx(np.mean(differences))
    assert by_level.num_segments == 40
    there, back = result.compare("single_run"), result.compare("baseline", "single_run")
    assert (back.p, back.ci) == (there.p, (-there.ci[1], -there.ci[0]))


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
    analysis = run(study, store)
    for trial in analysis.trials:
        scores = [trial.metrics[f"{split}/bleu"] for split in ("test", "test_2017", "test_18")]
        assert len(set(scores)) == 3, "the made-up system draws other noise for every split's name"
        assert trial.metrics["tests/bleu"] == pytest.approx(sum(scores) / 3)
        assert len(trial.segments["test_2017/bleu"]) == 40
    assert {answer.claim.metric for answer in analysis.claims} == {"tests/bleu", "test_18/bleu"}
    assert "tests/sentences_per_s" not in analysis.metrics
    assert "test_2017/sentences_per_s" not in analysis.metrics, "which this system measures on test alone"


def test_the_order_of_cells_changes_no_figure(make_study, result, run, tmp_path):
    """The order of cells does not matter; the trials come from another store."""
    factors = {"arm": {"target": "arm", "levels": ARMS[::-1], "baseline": "random_init"}}
    turned = run(make_study(factors=factors), ArtifactStore.open(tmp_path))
    expected = {cell["label"]: cell for cell in result.to_json()["cells"]}
    actual = {cell["label"]: cell for cell in turned.to_json()["cells"]}
    for label, cell in expected.items():
        assert without_times(actual[label]) == without_times(cell)


def without_times(cell):
    drop = {"test/sentences_per_s"}
    return {
        key: {name: value for name, value in part.items() if name not in drop} if key != "cell" else part
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
    empty = StudyResult.read(make_small_study(claims=CLAIMS), store)
    assert {cell.state for cell in empty.cells} == {"planned"}
    assert empty.metrics == {}
    assert {claim.verdict for claim in empty.claims} == {"not run"}
    assert empty.compare("patt_eg").difference is None
    assert empty.to_json()["cells"][1]["metrics"] == {}
    assert len(empty.frame()) == 6


def test_a_failed_trial_leaves_the_other_seeds(make_small_study, store, run):
    analysis = run(make_small_study(base={"fails_with_seed": 2}, seeds=[1, 2, 3]), store)
    cell = analysis.cell("patt_eg")
    assert cell.state == "failed"
    assert cell.reasons == ["seed 2: finetune: RuntimeError: CUDA out of memory, as it were"]
    assert analysis.compare("patt_eg").seeds == (1, 3)
    document = analysis.to_json()
    assert document["trials"] == {"run": 0, "reused": 4, "failed": 2}
    assert document["cells"][1]["metrics"]["test/bleu"]["seeds"] == [1, 3]


def test_trials_that_have_not_run_are_planned(make_small_study, store, run):
    analysis = run(make_small_study(claims=CLAIMS), store, skip={("arm=patt_eg", 2), ("arm=patt_eg", 3)})
    assert analysis.cell("patt_eg").state == "planned"
    comparison = analysis.compare("patt_eg")
    assert comparison.scope == "segments"
    assert comparison.num_seeds == 1
    assert (
        comparison.notes[0]
        == "difference over seed 1 alone, which both cells finished; means are over all seeds"
    )
    assert analysis.claims[0].text == "undecided (2 seeds more)", "up to the first look"


def test_a_trial_whose_stage_is_being_computed_is_running(make_small_study, store):
    analysis = StudyResult.read(make_small_study(), store)
    upstream = analysis.system.stage_graph(
        analysis.system.config_type(), seed=1, splits=("dev", "test")
    ).find("upstream")  # fmt: skip
    with store.leases.acquire(upstream.fingerprint):
        assert {trial.state for trial in StudyResult.read(make_small_study(), store).trials} == {"running"}


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


def test_the_frame_has_one_row_per_trial(result):
    frame = result.frame()
    assert len(frame) == 15
    assert list(frame["factor.arm"].unique()) == ARMS
    means = frame.groupby("factor.arm")["test/bleu"].mean()
    assert means["patt_eg"] == pytest.approx(result.cell("patt_eg").mean("test/bleu"))
    assert frame["fingerprint"].is_unique


@pytest.fixture(scope="module")
def searched(make_arms, run, tmp_path_factory):
    space = {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}}
    study = make_arms(ARMS[:2], search={"space": space, "trials": 4})
    return run(study, ArtifactStore.open(tmp_path_factory.mktemp("searched")))


def test_the_best_search_trial_on_dev_is_replicated(searched):
    cell = searched.cell("single_run")
    assert [trial.kind for trial in cell.search] == ["search"] * 4
    scores = [trial.metrics["dev/bleu"] for trial in cell.search]
    assert dict(cell.params) == dict(cell.search[int(np.argmax(scores))].params)
    assert all(trial.params == cell.params for trial in cell.trials)
    assert all("test/bleu" not in trial.metrics for trial in cell.search)
    assert searched.to_json()["cells"][0]["search"]["finished"] == 4
    assert searched.to_json()["cells"][0]["search"]["distinct"] == 4
    assert "| 4 + 0 + 0 | 4 |" in searched.render("md")
    assert "3 seeds and 4 search trials" in searched.render("md")
    assert len(searched.frame()) == 2 * (4 + 3)


def test_an_unfinished_search_leaves_the_replicates_planned(searched, store):
    study = Study.from_dict({**searched.study.to_dict(), "seeds": [9]})
    cell = StudyResult.read(study, store).cells[0]
    assert cell.state == "planned"
    assert cell.reasons == ["seed 9: 0 of 4 search trials have ended"]


def test_lines_of_one_document_are_drawn_together(make_small_study, run, store):
    study = make_small_study(base={"lines_per_document": 5})
    analysis = run(study, store)
    plain = run(make_small_study(), store)
    by_line, by_document = (
        grouping.compare("patt_eg", metric="test/accuracy") for grouping in (plain, analysis)
    )
    assert (by_line.num_segments, by_document.num_segments) == (40, 8)
    assert by_document.difference == by_line.difference
    # by hand: each document is one unit of the bootstrap
    rows = [
        plain.cell(name).trials[0].segments["test/accuracy"].reshape(8, 5, 2).sum(axis=1)
        for name in ("patt_eg", "baseline")
    ]
    segments = analysis.cell("patt_eg").trials[0].segments["test/accuracy"]
    assert np.array_equal(segments, rows[0])
    assert "resampled by document (8 documents)" in analysis.render("md")
    assert "by document" not in plain.render("md")
