"""What a report has shown decides what a later one may say: claims beside effects, figures, single cells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nlgraft.analysis.data.ledger import open_ledger
from nlgraft.analysis.rendering.journals import ledger_sentences, ledger_table
from nlgraft.analysis.rendering.search_tables import search_table
from nlgraft.analysis.rendering.typesetting import to_markdown
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config

SEARCHES = Path(__file__).parents[3] / "search_spaces"
BLEU, ACCURACY = "test/bleu", "test/accuracy"
ARM = {"target": "arm", "levels": ["random_init", "patt_eg"], "baseline": "random_init"}
SIDES = {"target": "upstream", "levels": ["a", "b"], "baseline": "a"}
NOISE = np.array([0.3, -0.2, 0.1, 0.25, -0.35])


@pytest.fixture
def shown(make_study, scored, store):
    """Show a study whose cells have these BLEU scores, one per seed; seeds after them have not finished."""

    def show(scores, *, factors=None, num=None, metric=BLEU, **changes):
        seeds = changes.pop("seeds", [1, 2, 3, 4, 5])
        settings = {"factors": factors or {"arm": ARM}, "claims": [], **changes}
        study = make_study(seeds=list(seeds), **settings)
        blank = np.zeros(len(seeds))
        values = {
            cell.label: {metric: scores.get(cell.label, blank), "dev/bleu": blank} for cell in cells(study)
        }
        result = replace(scored(study, values), store=store)
        for cell in result.cells:
            for trial in cell.trials[0 if cell.cell.label not in scores else num or len(seeds) :]:
                object.__setattr__(trial, "state", "planned")
        _ = result.analyses
        return result

    return show


def test_a_claim_on_an_interaction_does_not_get_the_answer_of_a_main_effect(shown):
    claim = {
        "better": "arm=patt_eg, sides=b",
        "worse": "sides=b",
        "exceeds": ["arm=patt_eg", "baseline"],
        "metric": BLEU,
        "source": "our guess",
    }
    rng = np.random.default_rng(2)
    means = {"baseline": 0, "arm=patt_eg": 0, "sides=b": 3, "arm=patt_eg, sides=b": 3}
    scores = {label: 30 + mean + 0.3 * rng.standard_normal(5) for label, mean in means.items()}
    result = shown(scores, factors={"arm": ARM, "sides": SIDES}, design={"kind": "full"}, claims=[claim])
    (answer,) = result.claims
    assert answer.verdict == "undecided"
    assert answer.comparison.p_holm == result.alone().claims[0].comparison.p_holm
    (main,) = [effect for effect in result.effects() if effect.contrast.label == "sides=b"]
    assert main.comparison.p_holm < 0.01


def test_an_effect_of_one_block_leaves_the_comparison_of_its_cells_alone(shown):
    arms = ["random_init", "avg_eg", "att_eg", "patt_eg"]
    factors = {"arm": {**ARM, "levels": arms}, "sides": SIDES}
    exclude = [{"arm": arm, "sides": "b"} for arm in ("avg_eg", "att_eg")]
    rng = np.random.default_rng(3)
    labels = ["baseline", *(f"arm={arm}" for arm in arms[1:]), "sides=b", "arm=patt_eg, sides=b"]
    scores = {label: 30 + (label != "baseline") * 0.6 + 0.4 * rng.standard_normal(5) for label in labels}
    claims = [{"better": "patt_eg", "worse": arm, "metric": BLEU, "source": "ours"} for arm in arms[1:3]]
    result = shown(scores, factors=factors, design={"kind": "full"}, exclude=exclude, claims=claims)
    alone = result.alone()
    assert "arm=avg_eg" in [effect.contrast.label for effect in result.effects()]
    for cell in result.cells[1:]:
        assert result.compare(cell.cell).p_holm == alone.compare(cell.cell).p_holm


def test_a_metric_is_shown_though_the_main_one_has_no_difference(make_small_study, scored, store):
    low = {BLEU: np.full(3, np.nan), ACCURACY: np.array([5.0, 5.2, 5.1])}
    high = {BLEU: 30 + NOISE[:3], ACCURACY: 60 + NOISE[:3]}
    result = replace(scored(make_small_study(), {"baseline": high, "arm=patt_eg": low}), store=store)
    assert ACCURACY in result.render("md")
    assert result.compare("arm=patt_eg", metric=ACCURACY).standing == "open"


def test_where_every_score_is_the_baselines_the_setting_is_doubted_and_no_seed_is_needed(shown):
    scores = np.array([30.0, 31.5, 29.0])
    compared = shown({"baseline": scores, "arm=patt_eg": scores}, seeds=range(3)).compare("arm=patt_eg")
    assert any("does the setting reach" in note for note in compared.notes)
    assert (compared.standing, compared.seeds_needed) == ("open", None)


def test_a_tie_on_a_further_metric_doubts_no_setting_and_constant_scores_doubt_the_seed(make_study, scored):
    study = make_study(factors={"arm": ARM}, claims=[], published=[])
    tie, up = np.array([50.0, 51.0, 52.0]), np.array([30.0, 30.5, 31.5])
    low, high = {BLEU: up, ACCURACY: tie}, {BLEU: 2 * up, ACCURACY: tie}
    compared = scored(study, {"baseline": low, "arm=patt_eg": high}).compare("arm=patt_eg", metric=ACCURACY)
    assert not any("does the setting reach" in note for note in compared.notes)
    low, high = {BLEU: np.full(3, 30.0)}, {BLEU: np.full(3, 31.0)}
    compared = scored(study, {"baseline": low, "arm=patt_eg": high}).compare("arm=patt_eg")
    assert any("does the seed reach what computes test/bleu" in note for note in compared.notes)


@pytest.mark.parametrize("has_arm", [False, True])
def test_seeds_chosen_by_the_baseline_alone_decide_nothing(shown, store, has_arm):
    rng = np.random.default_rng(5)
    base, arm = 30 + rng.standard_normal(20), 30 + rng.standard_normal(20)
    factors = {"arm": ARM} if has_arm else {"arm": {**ARM, "levels": ["random_init"]}}
    shown({"baseline": base}, seeds=range(20), factors=factors)
    assert len(open_ledger(store).read().documents) == 1
    assert "0, 1, 2, 3" in to_markdown(ledger_table(open_ledger(store).read().documents))
    lowest = sorted(int(seed) for seed in np.argsort(base)[:5])
    comparison = shown({"baseline": base[lowest], "arm=patt_eg": arm[lowest] + 3}, seeds=lowest).compare(
        "arm=patt_eg"
    )
    assert (comparison.p_holm, comparison.standing) == (None, "open")
    assert any("20 seeds were declared" in note for note in comparison.notes)


def test_a_baseline_seen_with_the_seeds_of_the_plan_costs_nothing(shown):
    shown({"baseline": 30 + NOISE})
    comparison = shown({"baseline": 30 + NOISE, "arm=patt_eg": 34 - NOISE}).compare("arm=patt_eg")
    assert (comparison.basis, comparison.standing) == ("declared", "better")


def test_winners_of_two_searches_are_no_question_for_other_seeds(make_study, run, store):
    search = {"trials": 2, "space": {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}}}
    settings = {"claims": []}
    for arm in ("random_init", "patt_eg"):
        alone = make_study(name=arm, factors={}, base={"arm": arm}, search=search, **settings)
        assert len(run(alone, store).analyses) == 1
    factors = {"arm": {**ARM, "levels": [*ARM["levels"], "avg_eg"]}}
    later = make_study(factors=factors, base={"lr": 1e-3}, seeds=[11, 12, 13], **settings)
    assert [compared.basis for compared in run(later, store).against_baseline()] == [
        "exploratory",
        "declared",
    ]


def test_what_has_not_run_did_not_come_too_late(shown):
    assert "declared later" not in ledger_sentences(shown({"baseline": 30 + NOISE}))


def test_a_claim_with_a_margin_is_told_in_its_own_words(shown):
    claim = {"better": "patt_eg", "worse": "random_init", "metric": BLEU, "source": "T", "margin": 2.0}
    scores = {"baseline": 30 + NOISE, "arm=patt_eg": 29.6 - NOISE}
    (answer,) = shown(scores, claims=[{**claim, "data": {"upstream.domain": "a"}}]).claims
    assert (answer.verdict, answer.explanation.partition(",")[0]) == ("supported", "not worse by more than 2")
    assert (answer.comparison.standing, answer.comparison.verdict) == (None, "judged as a claim")
    (other,) = shown(scores, claims=[{**claim, "data": {"upstream.domain": "b"}}]).claims
    assert other.text == "no worse by more than 2, other data"


def test_a_paper_states_the_seeds_that_have_finished(shown, tmp_path):
    result = shown({"baseline": 30 + NOISE, "arm=patt_eg": 31 - NOISE}, num=3)
    result.paper(tmp_path)
    numbers = "".join(path.read_text() for path in tmp_path.glob("numbers.tex"))
    assert r".seeds\endcsname{3}" in numbers


def test_arms_that_differ_with_searched_settings_alone_are_questions_of_their_own(scored, store):
    """Plain, own, random and pretrained have one stage graph before a merge is proposed."""
    study = Study.from_yaml(SEARCHES / "prlm_fusion" / "search.yaml")
    noise = np.random.default_rng(4).standard_normal((4, 3))
    scores = np.array([[40], [43], [42], [49]]) + noise
    values = {cell.label: {BLEU: row} for cell, row in zip(cells(study), scores, strict=True)}
    result = replace(scored(study, values), store=store)
    answers = [*result.against_baseline(), *(claim.comparison for claim in result.claims[1:])]
    answers.sort(key=lambda answer: answer.p)
    # Holm over five; .8 of the level is that of the first look, .8 of alpha that of the first declaration.
    steps = [answer.p * (5 - rank) / 0.64 for rank, answer in enumerate(answers)]
    assert [answer.p_holm for answer in answers] == pytest.approx(np.minimum(1, np.maximum.accumulate(steps)))


def test_a_search_did_not_choose_what_nothing_read(scored):
    """Without a fine encoder nothing is new, so that there is no rest of which a part could learn."""
    study = Study.from_yaml(SEARCHES / "multi_source" / "search.yaml")
    params = {"sources.fine_encoder.num_layers": 0, "multi_source.part": {"top_layers": 1}}
    result = scored(study, {cell.label: {BLEU: np.arange(3.0)} for cell in cells(study)})
    for cell in result.cells:
        object.__setattr__(cell, "params", params)
        config = resolve_config(study, cell.cell, params).model_dump(mode="json")
        object.__setattr__(cell.trials[0], "record", replace(cell.trials[0].record, config=config))
    table = search_table(result)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert [row[path].text for path in params] == ["0", "–"]
