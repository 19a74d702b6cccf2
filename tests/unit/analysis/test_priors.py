"""Noise of earlier studies in verdicts: what enters a prior, what it changes, and that it is frozen."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.power import found
from nlgraft.analysis.data.ledger import Training, open_ledger, training_of
from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.estimates.noise_prior import (
    WEIGHT_OF_STUDIES,
    StudyVariance,
    paired_kinds,
    prior_of,
    study_variance,
)
from nlgraft.analysis.estimates.power import smallest_detectable
from nlgraft.analysis.policy.validity import design_of
from nlgraft.analysis.rendering.prose import method
from nlgraft.study.data.design import cells

METRIC = "dev/loss"
ARMS = ["random_init", "avg_eg", "att_eg", "patt_eg"]
LABELS = ["baseline", "arm=avg_eg", "arm=att_eg", "arm=patt_eg"]


@pytest.fixture
def shown(make_arms, scored, store):
    """Show a study of drawn scores in one store; they have no segments."""

    def show(name, seed, deviation=1.0, lr=1e-3, arms=ARMS, seeds=(1, 2, 3), shift=0.0, **analysis):
        study = make_arms(
            arms,
            name=name,
            base={"lr": lr},
            seeds=list(seeds),
            objective={"metric": METRIC, "direction": "minimize"},
            analysis=analysis,
        )
        draw = np.random.default_rng(seed).standard_normal((4, 12)) * deviation
        draw[1] += shift
        rows = {
            label: {METRIC: 5 + row[: len(seeds)]}
            for arm, label, row in zip(ARMS, LABELS, draw, strict=True)
            if arm in arms
        }
        result = replace(scored(study, rows), store=store)
        result.headline()
        return result

    return show


def differences(result, label, base="baseline"):
    a, b = (result.cell(name).values(METRIC) for name in (label, base))
    return np.array([a[seed] - b[seed] for seed in a if seed in b])


def prior_of_one_arm(shown):
    return shown("study", 1, arms=ARMS[:2]).compare(LABELS[1]).prior


def prior_by_hand(result):
    variance = StudyVariance.of([differences(result, label) for label in LABELS[1:]])
    assert variance.df == pytest.approx(4 * 3 / 6 * 2)
    return prior_of([variance], WEIGHT_OF_STUDIES)


def test_comparisons_are_moderated_t_tests_by_limmas_formula(shown):
    earlier = shown("earlier", 1, lr=2e-3)
    result = shown("study", 2, deviation=0.7)
    expected = prior_by_hand(earlier)
    for label in LABELS[1:]:
        compared, gains = result.compare(label), differences(result, label)
        assert compared.prior == replace(expected, studies=("earlier",))
        variance = (expected.df * expected.variance + 2 * gains.var(ddof=1)) / (expected.df + 2)
        t = gains.mean() / math.sqrt(variance / 3)
        assert compared.looks[3].p == pytest.approx(2 * stats.t.sf(abs(t), expected.df + 2), abs=2e-3)
        reach = stats.t.isf(0.025, expected.df + 2) * math.sqrt(variance / 3)
        assert compared.ci == pytest.approx((gains.mean() - reach, gains.mean() + reach), rel=0.02)
        assert compared.estimate.df == expected.df + 2
        assert compared.noise == f"noise: 2 df of this study + {expected.df:.1f} of 1 earlier one"


def test_without_a_prior_it_is_students_t(shown):
    shown("earlier", 1, lr=2e-3)
    alone = shown("study", 2, shift=20.0, prior="none")
    compared, gains = alone.compare(LABELS[1]), differences(alone, LABELS[1])
    assert (compared.prior, compared.noise, compared.estimate.df) == (None, "", 2)
    assert compared.looks[3].p == pytest.approx(stats.ttest_1samp(gains, 0).pvalue, rel=1e-12)
    assert compared.estimate.variance == pytest.approx(gains.var(ddof=1), rel=1e-12)


def test_a_study_in_an_empty_store_has_no_prior(shown):
    first, none = shown("study", 2), shown("study", 2, prior="none")
    for label in LABELS[1:]:
        assert first.compare(label).to_json() == none.compare(label).to_json()


def test_a_prior_is_frozen_with_the_question(shown, store):
    shown("earlier", 1, lr=2e-3)
    before = shown("study", 2)
    shown("later", 3, deviation=9.0, lr=3e-3)
    after = shown("study", 2)
    more = shown("study", 2, seeds=range(1, 7))
    for label in LABELS[1:]:
        assert after.compare(label).to_json() == before.compare(label).to_json()
        assert more.compare(label).prior == before.compare(label).prior
    entries = list(open_ledger(store).read().documents.values())
    assert len(entries) == 4, "showing the study again entered nothing"
    priors = {question.prior for entry in entries if entry.study == "study" for question in entry.asked}
    assert priors == {before.compare(LABELS[1]).prior}


@pytest.mark.parametrize(
    ("seeds", "pairs"),
    [((1, 2, 3), [(3, 2)]), ((101, 102, 103), [(2, 0), (3, 0)])],
    ids=["a baseline in both studies leaves the difference of the other arms", "trials of other seeds"],
)
def test_no_prior_contains_trials_that_it_judges(shown, seeds, pairs):
    earlier = shown("earlier", 1, arms=[ARMS[0], *ARMS[2:]], seeds=seeds)
    variance = StudyVariance.of([differences(earlier, LABELS[a], base=LABELS[b]) for a, b in pairs])
    expected = replace(prior_of([variance], WEIGHT_OF_STUDIES), studies=("earlier",))
    assert prior_of_one_arm(shown) == expected


def test_a_study_with_one_arm_and_the_same_baseline_says_nothing(shown):
    shown("earlier", 1, arms=[ARMS[0], ARMS[2]])
    assert prior_of_one_arm(shown) is None


def test_a_question_keeps_what_it_was_asked_with(shown):
    shown("first", 1)
    shown("other", 3, lr=5e-3)
    assert shown("again", 1).compare(LABELS[1]).prior is None
    third = shown("third", 4, lr=6e-3)
    assert shown("third", 4, lr=6e-3, prior="none").compare(LABELS[1]).prior == third.compare(LABELS[1]).prior


def test_studies_of_other_data_are_not_alike(shown, make_study):
    study = make_study()
    first = training_of(study, cells(study)[0])
    upstream = study.data["upstream"] | {"test": 7}
    same = make_study(data=study.data | {"upstream": upstream}, base={"lr": 0.5})
    assert training_of(same, cells(same)[0]).kind == first.kind, "another rate, more test lines"
    other = make_study(data=study.data | {"upstream": study.data["upstream"] | {"domain": "b"}})
    assert training_of(other, cells(other)[0]).kind != first.kind


def test_arms_that_differ_in_decoding_alone_neither_enter_nor_are_moderated():
    trained, decoded = Training(kind="k", weights="1"), Training(kind="k", weights="1")
    other, larger = Training(kind="k", weights="2"), Training(kind="l", weights="3")
    assert paired_kinds([trained, decoded]) is None
    assert paired_kinds([trained, other]) == ("k", "k")
    assert paired_kinds([larger, other]) == ("k", "l")
    assert paired_kinds([trained, other, larger]) is None
    assert paired_kinds([trained]) is None
    scores = {
        "base": {1: 0.0, 2: 0.0, 3: 0.0},
        "decoded": {1: 9.0, 2: -9.0, 3: 0.0},
        "arm": {1: 1.0, 2: 2.0, 3: 3.0},
    }
    trainings = {"base": trained, "decoded": decoded, "arm": other}
    assert study_variance(trainings, scores, ("k", "k")) == StudyVariance.of([[1.0, 2.0, 3.0]])


def test_a_noisier_study_falls_back_on_its_own_arms(shown):
    shown("earlier", 1, deviation=0.1, lr=2e-3)
    result = shown("study", 2)
    compared = result.compare(LABELS[1])
    assert compared.is_unlike
    pooled = StudyVariance.of([differences(result, label) for label in LABELS[1:]])
    further = min(compared.prior.df, pooled.df - 2)
    squares = 2 * differences(result, LABELS[1]).var(ddof=1)
    assert compared.estimate.variance == pytest.approx((squares + further * pooled.variance) / (2 + further))
    assert "far from that of 1 earlier one" in compared.noise


def test_every_format_says_what_tells_the_noise(shown, store):
    shown("earlier", 1, lr=2e-3)
    result = shown("study", 2, deviation=0.7)
    prior = result.compare(LABELS[1]).prior
    text = f"2 df of this study + {prior.df:.1f} of 1 earlier one"
    assert text in result.render("md")
    assert text in result.render("html")
    assert text in result.note()
    document = json.loads(result.render("json"))
    shown_prior = document["cells"][1]["comparison"][METRIC]["prior"]
    assert shown_prior == {
        "df": pytest.approx(prior.df),
        "variance": pytest.approx(prior.variance),
        "studies": ["earlier"],
        "is_published": False,
    }
    (sentence,) = [sentence for sentence in method(result) if "moderated" in sentence]
    assert "(earlier)" in sentence
    assert f"{prior.df:.1f} degrees of freedom" in sentence


def test_looks_and_seeds_needed_know_the_prior(shown):
    shown("earlier", 1, deviation=0.5, lr=2e-3)
    result = shown("study", 2, deviation=0.5).alone()
    compared = result.compare(LABELS[1])
    df = compared.prior.df
    assert compared.smallest_detectable == smallest_detectable(compared.estimate, compared.level)
    assert compared.estimate.df == df + 2
    levels = look_levels((3, 6, 12), 0.04 / 3, df)
    assert [compared.level, *compared.later_levels.values()] == pytest.approx(levels)
    assert compared.p == compared.looks[3].p
    assert levels[1:] != look_levels((3, 6, 12), 0.04 / 3)[1:]


def test_validity_simulates_with_the_prior_before_the_study_runs(shown, with_trials):
    earlier = shown("earlier", 1, lr=2e-3)
    ran = shown("study", 2)
    planned = with_trials(ran, lambda *_: {"state": "planned", "record": None})
    design = design_of(planned.alone())
    assert design.prior == replace(prior_by_hand(earlier), studies=("earlier",))
    assert design.seed_variance == design.prior.variance
    assert not design.is_assumed


@pytest.mark.slow
@pytest.mark.parametrize("num_studies", [0, 1, 2, 5])
def test_errors_and_power_after_earlier_studies(num_studies):
    """Four arms; studies and cells differ by a log deviation of .3: `benchmarks.power` has the table."""
    name = "one of four arms of a first study"
    _, error = found(name, 0.0, num_studies, 2000)
    assert error <= 0.055
    powers, _ = found(name, 2.0, num_studies, 1000)
    at_three, by_six = {0: (0.08, 0.3), 1: (0.2, 0.42), 2: (0.23, 0.46), 5: (0.27, 0.53)}[num_studies]
    assert powers[0] >= at_three
    assert powers[1] >= by_six
