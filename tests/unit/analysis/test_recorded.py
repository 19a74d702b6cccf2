"""Verdicts over the ledger of a store, as a user meets them: studies are run, changed and shown again."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nlgraft import api
from nlgraft.analysis.data.ledger import open_ledger
from nlgraft.analysis.policy.rules import FIRST
from nlgraft.analysis.rendering import prose
from nlgraft.analysis.study_result import StudyResult
from nlgraft.pipeline.record_store import Journal
from nlgraft.study.data.design import cells
from nlgraft.study.planning.selection import record_granted
from tests.commands import json_of, nlgraft
from tests.unit.analysis import registered

METRIC = "test/accuracy"
ARMS = ["random_init", "avg_eg", "att_eg", "patt_eg"]


def factors(*arms, baseline="random_init"):
    return {"arm": {"target": "arm", "levels": list(arms), "baseline": baseline}}


SEEDS = [1, 2, 3, 4, 5]
CLEAR = factors("random_init", "patt_eg")
"""Decided with five seeds: p = .021."""
UNCLEAR = factors("random_init", "avg_eg")
"""Not decided: p = .46."""
BLEU = {"metric": "test/bleu", "source": "our guess"}


@pytest.fixture
def shown(make_study, run, store):
    """Run a study and show its result, as `nlgraft run` does; some trials are left out."""

    def show(seeds=SEEDS, factors=CLEAR, skip=(), **changes):
        changes = {"claims": [], **changes}
        study = make_study(seeds=list(seeds), factors=factors, **changes)
        run(study, store, skip=skip)
        result = StudyResult.read(study, store)
        result.headline()
        return result

    return show


def entries(store):
    return open_ledger(store).read().documents


def of(result, arm="patt_eg", metric=None):
    return result.compare(f"arm={arm}", metric=metric)


def alone(result):
    """The same results in no store, computed anew: corrected by the study's own family only."""
    return replace(result, store=None)


def verdicts(result):
    return {cell.cell.label: result.compare(cell.cell).standing for cell in result.cells[1:]}


def test_the_first_analysis_keeps_its_p_values_to_the_digit(shown):
    claims = [
        {"better": "patt_eg", "worse": "att_eg", **BLEU},
        {"better": "att_eg", "worse": "avg_eg", **BLEU},
    ]
    result = shown(range(1, 9), factors(*ARMS), claims=claims)
    without_ledger = alone(result)
    for cell in result.cells[1:]:
        comparison, expected = result.compare(cell.cell), without_ledger.compare(cell.cell)
        assert (comparison.p, comparison.p_holm, comparison.ci) == (expected.p, expected.p_holm, expected.ci)
        assert comparison.p_holm is not None
        assert comparison.standing == expected.standing
    assert [(c.verdict, c.comparison.p_holm) for c in result.claims] == [
        (c.verdict, c.comparison.p_holm) for c in without_ledger.claims
    ]
    assert "better" in verdicts(result).values()


@pytest.mark.parametrize("look", [lambda result: result.compare("patt_eg"), lambda result: result.frame()])
def test_a_result_enters_when_its_scores_are_looked_at(make_small_study, run, store, look):
    result = run(make_small_study(seeds=[1, 2]), store)
    assert not entries(store)
    look(result)
    assert len(entries(store)) == 1


def test_the_first_trial_declares_the_study_before_its_score_is_seen(make_small_study, run, store):
    """`run` and `trial` print scores as trials end: no seeds may be chosen by them."""
    study = make_small_study(seeds=[1, 2, 3, 4, 5, 6])
    labels = [cell.label for cell in cells(study)]
    skip = [(label, seed) for label in labels for seed in study.seeds][1:]
    run(study, store, skip=skip).declare()
    assert "declared only" in nlgraft("ledger", "--storage", store.uri).output
    result = run(study, store)
    result.declare()
    assert len(entries(store)) == 1, "all of it has been declared"
    assert "Analysis 1 of these" in result.render("md")
    chosen = run(make_small_study(seeds=[2, 4, 5]), store)
    assert (of(chosen).p_holm, of(chosen).standing) == (None, "open")
    assert any("6 seeds were declared" in note for note in of(chosen).notes)


def test_the_same_analysis_again_costs_nothing(shown, store):
    first = shown().render("md")
    assert shown().render("md") == first
    assert len(entries(store)) == 1


def test_fewer_seeds_after_more_leave_the_result_alone(shown):
    """The README's example in Python runs two seeds after the demo's three."""
    before = shown()
    fewer = shown([1, 2, 3])
    assert verdicts(fewer) == {"arm=patt_eg": "open"}
    assert of(fewer).p_holm is None
    assert any("5 seeds were declared" in note for note in of(fewer).notes)
    after = shown()
    assert after.render("md") == before.render("md")
    assert verdicts(after) == {"arm=patt_eg": "better"}


def test_seeds_beside_the_looks_change_no_verdict_and_those_of_the_next_look_do(shown):
    """Extended in the hope of a star: seeds count at the looks at 3, 6 and 12, and in no other number."""
    first = of(shown([1, 2, 3]))
    for seeds in ([1, 2, 3, 4], SEEDS):
        result = shown(seeds)
        assert (of(result).p_holm, of(result).seeds) == (first.p_holm, (1, 2, 3))
        assert any("count at the look of 6 seeds" in note for note in of(result).notes)
        assert verdicts(result) == {"arm=patt_eg": "open"}
    assert verdicts(alone(result)) == {"arm=patt_eg": "better"}, "as a study of five seeds from the start"
    assert of(shown([6, 7, 8])).p_holm is None, "its three seeds are not those that were declared"
    second = shown(range(1, 7))
    assert (of(second).basis, verdicts(second)) == ("declared", {"arm=patt_eg": "better"})
    assert first.p_holm > of(second).p_holm > of(alone(second)).p_holm


def test_an_undecided_study_goes_on_with_its_next_look(make_arms, run, store):
    arms = ["random_init", "avg_eg", "patt_eg"]
    study = make_arms(arms, seeds=[1, 2, 3])
    before = run(study, store)
    before.headline()
    granted = before.next_look()
    open_ones = [cell for cell in before.cells[1:] if verdicts(before)[cell.cell.label] == "open"]
    assert granted == dict.fromkeys([cell.cell.key for cell in (before.baseline, *open_ones)], 6)
    record_granted(study, store, granted)
    run(make_arms(arms, seeds=[1, 2, 3, 4, 5, 6]), store)
    after = StudyResult.read(study, store)
    assert [trial.seed for trial in after.baseline.trials] == [1, 2, 3, 4, 5, 6]
    compared = after.compare(open_ones[-1].cell)
    assert (compared.basis, compared.seeds, [*compared.looks]) == ("declared", (1, 2, 3, 4, 5, 6), [3, 6])
    assert set(after.next_look().values()) <= {12}


def test_another_baseline_is_exploratory(shown):
    shown(factors=factors("random_init", "patt_eg", "att_eg"))
    result = shown(factors=factors("att_eg", "patt_eg", "random_init", baseline="att_eg"))
    assert (of(result, "patt_eg").basis, of(result, "patt_eg").verdict) == ("exploratory", "exploratory")
    assert any("nlgraft register made-up-table2" in note for note in of(result, "patt_eg").notes)
    assert of(result, "random_init").basis == "declared", "the same pair from the other side"


def test_one_arm_at_a_time_pays_for_the_whole_family(shown):
    whole = factors(*ARMS)
    skip = [(f"arm={arm}", seed) for arm in ARMS[1:3] for seed in SEEDS]
    part = shown(factors=whole, skip=skip)
    assert of(part).p_holm == pytest.approx(min(1.0, 3 * of(part).p / FIRST**2))
    full = shown(factors=whole)
    assert of(full, "avg_eg").p_holm == of(alone(full), "avg_eg").p_holm


@pytest.mark.parametrize(
    ("first", "second", "arm", "level"),
    [
        (UNCLEAR, {"factors": CLEAR}, "patt_eg", 0.005),  # stays open, so it returns nothing
        (CLEAR, {"factors": UNCLEAR}, "avg_eg", 0.04 + 0.005),  # decided, so it passes its level on
        (UNCLEAR, {"factors": CLEAR, "base": {"lr": 1.5e-3}}, "patt_eg", 0.005),
        (UNCLEAR, {"factors": CLEAR, "base": {"segments": 60}}, "patt_eg", 0.005),
    ],
    ids=["arms swapped in the file", "an arm added", "a variant", "lines added to the test set"],
)
def test_what_is_asked_later_has_the_level_that_is_left(shown, first, second, arm, level):
    shown(factors=first)
    result = shown(**second)
    compared = of(result, arm)
    assert compared.basis == "declared later"
    assert compared.p_holm == pytest.approx(min(1.0, compared.p / FIRST * 0.05 / level))
    assert verdicts(result) == {f"arm={arm}": "open"}
    assert arm == "avg_eg" or verdicts(alone(result)) == {"arm=patt_eg": "better"}


def test_claims_and_family_cut_afterwards_change_nothing(shown):
    claims = [{"better": arm, "worse": "random_init", **BLEU} for arm in ARMS[1:]]
    first = shown(factors=factors(*ARMS), claims=claims, analysis={"family": "claims"})
    p_holm = first.claims[0].comparison.p_holm
    cut = shown(factors=factors(*ARMS), claims=claims[:1], analysis={"family": "claims"})
    assert cut.claims[0].comparison.p_holm == p_holm
    bare = shown(factors=factors(*ARMS), claims=claims[:1])
    assert of(bare, "avg_eg").p_holm == p_holm
    assert verdicts(bare)["arm=patt_eg"] == of(first).standing


def test_another_metric_chosen_afterwards_gets_no_star(shown):
    seen = shown(range(1, 9), UNCLEAR)
    assert of(seen, "avg_eg", metric=METRIC).basis == "exploratory", "in the tables, but not declared"
    claim = {"better": "avg_eg", "worse": "random_init", "metric": METRIC, "source": "a look at the tables"}
    chosen = shown(range(1, 9), UNCLEAR, claims=[claim])
    assert chosen.claims[0].comparison.basis == "exploratory"
    assert chosen.claims[0].verdict == "undecided"


def test_a_lost_seed_counts_as_undecided(shown):
    result = shown(skip=[("arm=patt_eg", 3)])
    assert of(result).p is not None
    assert of(result).p_holm is None
    assert verdicts(result) == {"arm=patt_eg": "open"}
    assert of(shown()).p_holm == of(alone(shown())).p_holm


def test_a_setting_that_changes_no_score_asks_nothing_new(shown):
    """Another fingerprint, the same scores: the question keeps its answer, decided or not."""
    first = of(shown())
    again = of(shown(base={"fails_with_seed": -2}))
    assert (again.basis, again.p_holm) == ("declared", first.p_holm)
    other = of(shown(base={"lr": 2e-3}))
    assert (other.basis, other.p_holm == first.p_holm) == ("declared later", False)


def test_another_version_of_a_stage_is_another_question_and_says_so(here, monkeypatch):
    """The code of a stage is edited and its version raised: where scores change, no second full level."""
    here.run().headline()
    monkeypatch.setattr(sys.modules[registered.SYSTEM], "VERSION", 2)
    same = here.run().compare("arm=avg")
    monkeypatch.setitem(registered.RIGHT, "avg", 0.75)
    monkeypatch.setattr(sys.modules[registered.SYSTEM], "VERSION", 3)
    other = here.run().compare("arm=avg")
    assert (same.basis, other.basis) == ("declared", "declared later")
    assert not any("is not that of an earlier analysis" in note for note in same.notes)
    assert any("is not that of an earlier analysis" in note for note in other.notes)


def test_a_ledger_of_an_earlier_version_counts_as_declared(shown, store):
    shown(factors=UNCLEAR)
    path = Path(store.uri) / "ledger/entries/000000/00000001.json"
    document = json.loads(path.read_text())
    old = {"version": 1, "plan": "seeds [1, 2, 3, 4, 5], paired_bootstrap", "alone": {}}
    for question in document["asked"]:
        question |= {"basis": "described", "p_anytime": 0.3, "is_complete": True, "looks": {}}
    path.write_text(json.dumps({**document, **old}))
    result = shown(factors=UNCLEAR)
    assert of(result, "avg_eg").basis == "declared later"
    assert "Analysis 2 of these 40 segments" in result.render("md")


def test_planned_looks_keep_their_p_values(shown):
    looks = {"sequential": {"looks": [3, 4]}}
    skip = [("baseline", 4), ("arm=patt_eg", 4)]
    result = shown([1, 2, 3, 4], **looks, skip=skip)
    assert of(result).p_holm == pytest.approx(of(alone(result)).p_holm)
    later = shown([1, 2, 3, 4], **looks)
    assert of(later).p_holm == pytest.approx(of(alone(later)).p_holm)
    assert of(later).basis == "declared"
    assert of(shown([1, 2, 3, 4])).p_holm == of(later).p_holm, "a plan that is deleted still holds"


def test_effects_of_crossed_factors_belong_to_the_first_analysis(shown):
    crossed = CLEAR | {"upstream": {"target": "upstream", "levels": ["a", "b"], "baseline": "a"}}
    result = shown(factors=crossed, design={"kind": "full"})
    p_values = [effect.comparison.p_holm for effect in alone(result).effects()]
    assert [effect.comparison.p_holm for effect in result.effects()] == p_values
    again = shown([1, 2, 3, 4], factors=crossed, design={"kind": "full"})
    assert {effect.comparison.standing for effect in again.effects()} == {"open"}
    assert "Significant main effects: none" in prose.headline(again)


def test_reports_say_what_came_before(shown, store):
    first = shown(factors=UNCLEAR)
    assert "Analysis 1 of these 40 segments" in first.render("md")
    assert "Earlier analyses" not in first.render("md")
    second = shown(factors=CLEAR)
    for kind in ("md", "html"):
        text = second.render(kind)
        assert "Analysis 2 of these 40 segments" in text
        assert "1 earlier: made-up-table2" in text
        assert "1 question declared later" in text
        assert "Earlier analyses of the same segments" in text
    assert second.to_json()["ledger"] == [
        {
            "metric": "test/bleu",
            "segments": 40,
            "analysis": 2,
            "earlier": ["made-up-table2"],
            "why_not_entered": "",
        }
    ]
    assert "Analysis 1 of these 40" in shown(factors=UNCLEAR).render("md"), "the same analysis, shown again"


def test_loading_and_comparing_enters_once_and_reports_agree(make_small_study, run, store, tmp_path):
    study = make_small_study(seeds=SEEDS, storage={"path": store.uri})
    run(study, store)
    api.validity(study, 100)
    assert not entries(store), "a design was examined, nothing was compared"
    comparison = api.load(study).compare("patt_eg")
    api.load(study).report(tmp_path, formats=["json"])
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["cells"][1]["comparison"]["test/bleu"]["p_holm"] == comparison.to_json()["p_holm"]
    assert [question.verdict for question in entries(store)[1].asked] == ["significant"]
    assert len(entries(store)) == 1


def test_the_command_lists_analyses(shown, store):
    shown(factors=UNCLEAR)
    shown(factors=CLEAR)
    listed = nlgraft("ledger", "--storage", store.uri).output
    assert [line.split()[0] for line in listed.splitlines() if line[:1].isdigit()] == ["1", "2"]
    assert "arm=patt_eg against" not in listed, "the level that was left decided nothing"
    listing = json_of("ledger", "--json", "--storage", store.uri)
    assert [analysis["number"] for analysis in listing["analyses"]] == [1, 2]
    assert listing["analyses"][1]["asked"][0]["basis"] == "declared later"


def test_a_store_that_takes_no_entry_is_reported_nevertheless(make_small_study, run, store, monkeypatch):
    result = run(make_small_study(seeds=SEEDS), store)

    def refuse(*_):
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Journal, "append", refuse)
    text = result.render("md")
    assert "lacks this analysis: read-only file system" in text
    assert verdicts(result) == {"arm=patt_eg": "better"}


def test_a_margin_counts_if_it_was_set_before_results_were_seen(shown, store):
    margin = {"margin": {"test/bleu": 14.0}}
    first = shown(range(1, 7), UNCLEAR, analysis=margin)
    comparison = of(first, "avg_eg")
    assert comparison.verdict == f"equal within 14 {comparison.unit}"
    assert [question.verdict for question in entries(store)[1].asked] == ["equal"]
    again = shown(range(1, 7), UNCLEAR, analysis={"margin": {"test/bleu": 20.0}})
    assert of(again, "avg_eg").standing == "equal", "what is within 14 is within 20"
    fresh = shown(range(1, 7), UNCLEAR, analysis={"margin": {"test/bleu": 13.9}})
    narrowed = of(fresh, "avg_eg")
    assert narrowed.standing == "open"
    assert narrowed.p_holm == comparison.p_holm, "the difference keeps its answer"
    assert any("the margin was not declared before results were seen" in note for note in narrowed.notes)


def test_one_pretraining_is_a_condition_of_equality_too(shown):
    result = shown(range(1, 7), UNCLEAR, analysis={"margin": {"test/bleu": 14.0}}, base={"upstream_seed": 1})
    comparison = of(result, "avg_eg")
    assert comparison.verdict == f"equal within 14 {comparison.unit} for this one pretraining (upstream)"
