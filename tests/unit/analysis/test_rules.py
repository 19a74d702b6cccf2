"""The rules of verdicts, replayed from entries: what is judged, at which level, and what keeps its answer."""

from dataclasses import replace

import pytest

from nlgraft.analysis.data.ledger import VERSION, Entry, LedgerQuestion, Look, Plan, Segments
from nlgraft.analysis.policy.rules import Rules

SEGMENTS = Segments.of([f"line {number}" for number in range(50)])
PLAN = Plan(seeds=tuple(range(1, 13)), looks=(3, 6, 12))
SIGNIFICANT, OPEN = 1e-4, 0.4


def question(arm, p=None, base="base", metric="bleu", num=3, margin=None, p_equal=None, **changes):
    looks = {} if p is None else {num: Look(difference=1.0, p=p, p_equal=p_equal)}
    defaults = {"seeds": PLAN.seeds[:num], "looks": looks, "difference": None if p is None else 1.0}
    return LedgerQuestion(
        metric=metric, cells=(arm, base), family=metric, equal_margin=margin, **defaults | changes
    )


def entry(*questions, base="base", metrics=("bleu",), plan=PLAN, **changes):
    cells = dict.fromkeys([base, *(cell for question in questions for cell in question.cells)])
    defaults = {"time": "", "study": "s", "variant": "s", "system": "s", "segments": SEGMENTS, "alpha": 0.05}
    scores = {base: {seed: float(seed) for seed in plan.seeds[:3]}}
    fixed = {"baseline": base, "cells": tuple(cells), "metrics": metrics, "plan": plan, "asked": questions}
    return Entry(version=VERSION, scores=scores, **defaults | fixed | changes)


def last_answer(*entries, index=0):
    rules = Rules(entries)
    return rules.answer(entries[-1], entries[-1].asked[index])


FIRST = entry(question("a", OPEN), question("b", OPEN))
DECIDED = entry(question("a", SIGNIFICANT), question("b", SIGNIFICANT))
ALONE = entry(question("a"), question("b"))

SITUATIONS = {
    "the first analysis": ([FIRST], "declared", 0.04),
    "the same question again": ([FIRST, entry(question("b", OPEN))], "declared", 0.04),
    "an arm added to an undecided study": ([FIRST, entry(question("c", OPEN))], "declared later", 0.005),
    "an arm added to a decided study": ([DECIDED, entry(question("c", OPEN))], "declared later", 0.045),
    "a third declaration": (
        [FIRST, entry(question("c", OPEN)), entry(question("d", OPEN))],
        "declared later",
        0.01 / 6,
    ),
    "another study with a baseline of its own": (
        [FIRST, entry(question("x", OPEN, "other"), base="other")],
        "declared later",
        0.005,
    ),
    "a pair of seen cells": ([FIRST, entry(question("a", OPEN, "b"))], "exploratory", 0),
    "a seen arm as the baseline of an unseen one": (
        [FIRST, entry(question("c", OPEN, "a"), base="a")],
        "exploratory",
        0,
    ),
    "a metric that reports have shown": (
        [replace(FIRST, metrics=("bleu", "chrf")), entry(question("a", OPEN, metric="chrf"))],
        "exploratory",
        0,
    ),
    "an unseen metric of all declared pairs": (
        [FIRST, entry(question("a", OPEN, metric="chrf"), question("b", OPEN, metric="chrf"))],
        "declared later",
        0.005,
    ),
    "an unseen metric of one of them": ([FIRST, entry(question("a", OPEN, metric="chrf"))], "exploratory", 0),
    "a question of no family": ([entry(replace(question("a", OPEN), family=None))], "exploratory", 0),
    "a metric that is computed in another way": (
        [
            entry(question("a", OPEN, signature="tok:13a")),
            entry(question("a", OPEN, signature="tok:char")),
        ],
        "exploratory",
        0,
    ),
    "an arm beside a baseline that was run alone": (
        [ALONE, entry(question("a", 0.01), question("b", OPEN))],
        "declared",
        0.04,
    ),
    "an arm that it did not declare": ([ALONE, entry(question("c", 0.01))], "declared later", 0.005),
    "after what showed nothing": (
        [replace(ALONE, scores={}), entry(question("c", OPEN))],
        "declared",
        0.04,
    ),
    "a declaration after an entry of version 1": (
        [replace(FIRST, version=1, plan="seeds [1, 2, 3]"), entry(question("a", OPEN))],
        "declared later",
        0.005,
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_judged_and_at_which_level(name):
    entries, basis, level = SITUATIONS[name]
    answer = last_answer(*entries)
    assert (answer.basis, answer.share * 0.05) == (basis, pytest.approx(level))
    assert (answer.p is None) == (basis == "exploratory")


def test_levels_of_undecided_declarations_add_up_to_alpha_at_most():
    rules = Rules([entry(question(f"arm{number}", OPEN)) for number in range(200)])
    assert rules.levels[0] == pytest.approx(0.04)
    assert 0.0499 < sum(rules.levels) <= 0.05


def test_a_decided_study_passes_its_level_on_to_one_declaration_at_a_time():
    third = entry(question("d", OPEN))
    assert Rules([DECIDED, entry(question("c", OPEN)), third]).levels[2] == pytest.approx(0.01 / 6)
    decided = entry(question("c", SIGNIFICANT))
    assert Rules([DECIDED, decided, third]).levels[2] == pytest.approx(0.045 + 0.01 / 6)


def test_a_study_that_is_decided_at_a_later_look_gives_its_level_to_what_was_declared_since():
    added = entry(question("c", 0.02))
    before = last_answer(FIRST, added)
    later = entry(question("a", SIGNIFICANT, num=6), question("b", SIGNIFICANT, num=6))
    rules = Rules([FIRST, added, later])
    after = rules.answer(added, added.asked[0])
    assert before.p > 0.05 > after.p


def test_the_first_answer_at_a_look_stays():
    again = entry(question("a", SIGNIFICANT))
    assert last_answer(FIRST, again).p == last_answer(FIRST).p
    looked = entry(question("a", SIGNIFICANT, num=6))
    assert last_answer(FIRST, looked).p < 0.05


def test_looks_that_nobody_declared_count_for_nothing():
    assert last_answer(FIRST, entry(question("a", SIGNIFICANT, num=5))).p == last_answer(FIRST).p


def test_questions_without_all_their_seeds_count_in_the_family_and_get_no_verdict():
    whole = entry(question("a", 0.01), question("b", num=2), question("c"))
    answer, missing = (last_answer(whole, index=index) for index in (0, 1))
    alone = last_answer(entry(question("a", 0.01)))
    assert answer.p == pytest.approx(3 * alone.p)
    assert (missing.p, missing.basis) == (None, "declared")
    assert "3 seeds were declared" in missing.reason


def test_a_look_on_the_other_side_takes_a_verdict_back():
    up = {3: Look(difference=1.0, p=SIGNIFICANT)}
    down = up | {6: Look(difference=-0.1, p=0.9)}
    assert last_answer(entry(question("a", OPEN, looks=up))).p < 0.05
    assert last_answer(entry(question("a", OPEN, looks=down))).p > 0.05


def test_an_arm_gets_its_answers_with_the_seeds_of_its_baseline():
    own_plan = Plan(seeds=(7, 8, 9, 10), looks=(2, 4))
    rules = Rules([FIRST])
    assert rules.plan(("c", "base"), own_plan) == PLAN
    assert rules.plan(("x", "other"), own_plan) == own_plan


def test_a_margin_belongs_to_the_declaration():
    first = entry(question("a", OPEN, margin=1.0, p_equal=0.001))
    assert last_answer(first).p_equal < 0.05
    assert last_answer(first, entry(question("a", OPEN, margin=2.0))).p_equal < 0.05
    narrower = last_answer(first, entry(question("a", OPEN, margin=0.5, p_equal=0.001)))
    assert narrower.p_equal is None
    assert "margin" in narrower.reason


def test_a_family_with_a_margin_passes_its_level_on_when_it_is_decided_both_ways():
    one_way = entry(question("a", SIGNIFICANT, margin=1.0, p_equal=0.9))
    both = entry(question("a", SIGNIFICANT, margin=1.0, p_equal=SIGNIFICANT))
    added = entry(question("c", OPEN))
    assert Rules([one_way, added]).levels[1] == pytest.approx(0.005)
    assert Rules([both, added]).levels[1] == pytest.approx(0.045)


def test_a_smaller_alpha_of_the_first_study_leaves_more_to_the_others():
    rules = Rules([replace(FIRST, alpha=0.01), entry(question("c", OPEN))])
    assert rules.levels == pytest.approx([0.008, (0.05 - 0.008) / 2])


def test_a_question_from_the_other_side_keeps_its_answer():
    looks = {3: Look(difference=-1.0, p=OPEN)}
    reversed_question = question("base", OPEN, base="b", looks=looks, difference=-1.0)
    answer = last_answer(DECIDED, entry(reversed_question, base="b"))
    assert (answer.basis, answer.p) == ("declared", last_answer(DECIDED, index=1).p)
    assert not answer.reason


def test_a_sign_that_later_seeds_have_turned_is_named():
    turned = entry(question("a", OPEN, num=6, looks={6: Look(difference=-1.0, p=OPEN)}))
    answer = last_answer(FIRST, turned, entry(question("a", OPEN)))
    assert answer.p is None
    assert "at 6 seeds, shows a difference of the other sign" in answer.reason


@pytest.mark.parametrize(("num_shared", "num", "num_other"), [(200, 200, 5_000), (150, 1_000, 1_000)])
def test_a_part_of_the_test_lines_is_known_again(num_shared, num, num_other):
    """A pilot on the first lines, or a test set that shares more than a tenth."""
    lines = [f"line {number}" for number in range(num_other)]
    unlike = [f"unlike {number}" for number in range(num - num_shared)]
    part, whole = Segments.of([*lines[:num_shared], *unlike]), Segments.of(lines)
    assert part.overlaps(whole)
    assert whole.overlaps(part)


def test_stray_lines_in_common_make_no_same_test_set():
    common = [f"Thank you. {number}" for number in range(30)]
    first, second = ([*common, *(f"{name} {number}" for number in range(2_000))] for name in "ab")
    assert not Segments.of(first).overlaps(Segments.of(second))
