"""The ledger and what verdicts cost: the rule of docs/validity.md on small histories."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from nlgraft.analysis.data.ledger import Asked, Entry, History, Segments, history, open_ledger
from nlgraft.analysis.statistics.budget import Budget, LedgerAnswer, corrected, record
from nlgraft.analysis.statistics.resampling import holm
from nlgraft.pipeline import journal
from nlgraft.pipeline.store import ArtifactStore

LINES = [f"line {number}" for number in range(1000)]
SEGMENTS = Segments.of(LINES)
METRICS = ("test/bleu", "test/chrf")


def study(p_values: dict[str, float | None], *, name: str = "study", **changes) -> Entry:
    """An analysis of arms by their p-values, None for one that has not finished."""
    baseline = changes.get("baseline", "base")
    asked = tuple(question(arm, p, baseline=baseline) for arm, p in p_values.items())
    entry = Entry(
        time="2026-11-23T12:00:00Z",
        study="study",
        variant=name,
        system="trainables.toy",
        segments=SEGMENTS,
        baseline=baseline,
        cells=(baseline, *p_values),
        metrics=METRICS,
        plan="seeds 1 2 3",
        alpha=0.05,
        asked=asked,
    )
    return replace(entry, **changes)


def question(
    arm: str, p: float | None, *, baseline: str = "base", metric: str = "test/bleu", **changes
) -> Asked:
    asked = Asked(
        metric=metric,
        cells=(arm, baseline),
        family=metric,
        seeds=() if p is None else (1, 2, 3),
        is_complete=p is not None,
        difference=None if p is None else 1.0,
        p=p,
        p_anytime=None if p is None else p / 100,
    )
    return replace(asked, **changes)


def answers(*entries: Entry) -> list[LedgerAnswer]:
    """Answers of the last analysis."""
    return corrected(entries[-1], History(dict(enumerate(entries[:-1], 1)), len(entries) - 1))


def p_values(*entries: Entry) -> list[float | None]:
    return [answer.p for answer in answers(*entries)]


def test_a_study_analysed_once_keeps_its_p_values_to_the_digit() -> None:
    raw = [0.011, 0.2, 0.0133, 0.7]
    first = study(dict(zip("abcd", raw, strict=True)))
    assert p_values(first) == holm(raw)
    assert p_values(first, first) == holm(raw), "showing it again costs nothing"


def test_what_is_declared_and_not_finished_counts() -> None:
    part = study({"a": 0.02, "b": None, "c": None})
    assert p_values(part) == [pytest.approx(0.06), None, None]
    whole = study({"a": 0.02, "b": 0.001, "c": 0.6})
    assert p_values(part, whole) == holm([0.02, 0.001, 0.6])


def test_a_frozen_question_keeps_its_answer_in_every_file() -> None:
    first = study({"a": 0.02, "b": 0.3, "c": 0.4})
    assert p_values(first, study({"a": 0.02})) == [pytest.approx(0.06)]
    found = answers(first, study({"a": 0.02, "d": 0.0001}))
    assert found[0].p == pytest.approx(0.06)
    assert (found[0].basis, found[1].basis) == ("declared", "afterthought")


def test_another_arm_after_an_open_family_is_an_afterthought() -> None:
    (found,) = answers(study({"a": 0.2}), study({"b": 0.001}))
    assert found.basis == "afterthought"
    assert found.share < 0.1 / 2
    assert found.p == pytest.approx(min(1.0, 0.00001 / found.share))


def test_a_decided_family_gives_its_level_to_new_arms_alone() -> None:
    first = study({"a": 0.001, "b": 0.03})
    (new,) = answers(first, study({"c": 0.04}))
    assert (new.p, new.basis) == (0.04, "declared")
    (plan,) = answers(first, study({"c": 0.04}, plan="seeds 1 2"))
    (baseline,) = answers(first, study({"c": 0.04}, baseline="a"))
    (other_metric,) = answers(
        first, replace(study({}), cells=("base", "c"), asked=(question("c", 0.04, metric="test/chrf"),))
    )
    assert {plan.basis, baseline.basis, other_metric.basis} == {"afterthought"}
    (unseen,) = answers(first, study({"d": 0.04}, baseline="base2", plan="seeds 7 8"))
    assert (unseen.p, unseen.basis) == (0.04, "declared")


def test_a_level_that_was_not_declared_is_left_for_the_next_study() -> None:
    first = study({"a": 0.2}, alpha=0.01)
    (found,) = answers(first, study({"b": 0.03}))
    assert found.p == pytest.approx(0.03 * 0.05 / 0.04)


def test_a_family_on_which_no_verdict_may_rest_gives_nothing_back() -> None:
    one_pretraining = replace(study({}), cells=("base", "a"), asked=(question("a", 0.001, is_judged=False),))
    assert answers(one_pretraining, study({"b": 0.03}))[0].basis == "afterthought"


def test_certain_differences_do_not_count_in_their_family() -> None:
    sure = question("b", None, is_certain=True, difference=5.0, seeds=(1, 2, 3))
    asked = (question("a", 0.04), sure)
    found = answers(replace(study({}), cells=("base", "a", "b"), asked=asked))
    assert [one.p for one in found] == [0.04, 0.0]


def test_seeds_that_were_seen_cannot_be_left_out() -> None:
    more = question("a", 0.0001, seeds=(1, 2, 3, 4, 5))
    five = replace(study({}), cells=("base", "a"), plan="seeds 1 2 3 4 5", asked=(more,))
    dropped = replace(five, plan="seeds 1 2 4", asked=(replace(more, seeds=(1, 2, 4)),))
    assert answers(study({"a": 0.2}), five)[0].basis == "afterthought"
    (found,) = answers(study({"a": 0.2}), dropped)
    assert (found.p, found.basis) == (None, "described")
    assert found.reason == "seeds that were seen are left out: 3"
    unseen = replace(dropped, asked=(replace(more, seeds=(1, 2, 4), left_out=(3,)),))
    assert answers(unseen)[0].p is None, "nor those that finished in the store"


def test_a_metric_computed_in_another_way_is_another_metric() -> None:
    first = replace(study({}), cells=("base", "a"), asked=(question("a", 0.04, signature="tok:13a"),))
    again = replace(first, asked=(question("a", 0.01, signature="tok:char"),))
    assert answers(first)[0].p == 0.04
    assert (answers(first, again)[0].p, answers(first, again)[0].basis) == (None, "described")


def test_shares_of_all_questions_that_could_be_asked_add_up_to_less_than_one() -> None:
    names = [["base", "a", "b"], ["c"], ["base2", "d", "e"], ["f", "g"]]
    budget = Budget({})
    for number, cells in enumerate(names, 1):
        base = cells[0] if cells[0].startswith("base") else "base"
        budget.add(number, study(dict.fromkeys(cells[cells[0] == base :], 0.5), baseline=base))
    every = list(itertools.chain(*names))
    shares = [
        budget._share(question(a, 0.5, baseline=b, metric=metric))
        for a, b in itertools.combinations(every, 2)
        for metric in METRICS
    ]
    assert None not in shares
    assert sum(shares, Fraction(0)) == 1 - Fraction(1, len(names) + 1)


def test_segments_are_known_again_with_lines_dropped_or_added() -> None:
    assert SEGMENTS.overlaps(Segments.of(LINES[1:]))
    assert SEGMENTS.overlaps(Segments.of(LINES[:500]))
    assert SEGMENTS.overlaps(Segments.of([*LINES, "one more"]))
    assert not SEGMENTS.overlaps(Segments.of([f"another {number}" for number in range(1000)]))


def test_the_ledger_of_a_store(tmp_path: Path) -> None:
    store = ArtifactStore.open(tmp_path)
    first, past = record(store, study({"a": 0.02, "b": 0.5}))
    assert (past.entries, first.asked[0].p_ledger, first.asked[0].verdict) == ({}, 0.04, "significant")
    second, past = record(store, study({"c": 0.2}, name="study-2"))
    assert list(past.entries) == [1]
    assert (second.asked[0].verdict, second.asked[0].basis) == ("open", "afterthought")
    record(store, study({"a": 0.02, "b": 0.5}, time="2027-01-01T00:00:00Z"))
    other = Segments.of(["an", "other", "test", "set"])
    third, past = record(store, study({"c": 0.03}, segments=other))
    assert (third.asked[0].p_ledger, past.entries) == (0.03, {})
    assert open_ledger(store).read().documents == {1: first, 2: second, 3: third}
    (tmp_path / "ledger/entries/000000/00000001.json").write_text("{")
    assert list(history(store, SEGMENTS).entries) == [2]
    assert "00000001.json" in history(store, SEGMENTS).problems[0]


def write_packs(root: Path, entries: Sequence[Entry]) -> None:
    form = TypeAdapter(dict[int, Entry])
    (root / "ledger/packs").mkdir(parents=True)
    for block, start in enumerate(range(0, len(entries), journal.BLOCK)):
        part = dict(enumerate(entries[start : start + journal.BLOCK], start + 1))
        (root / f"ledger/packs/{block:06d}.json").write_bytes(form.dump_json(part))


def seconds(ask: Callable[[], object]) -> float:
    """CPU time of the fastest of three: a busy machine, or a heap full of other tests, only adds to it."""
    found = []
    for _ in range(3):
        started = time.process_time()
        ask()
        found.append(time.process_time() - started)
    return min(found)


def test_ten_thousand_entries_are_read_in_less_than_a_second(tmp_path: Path) -> None:
    entries = [study(dict.fromkeys([f"{number}a", f"{number}b"], 0.5)) for number in range(10_000)]
    write_packs(tmp_path, entries)
    found = history(ArtifactStore.open(tmp_path), SEGMENTS)
    assert (len(found.entries), found.problems) == (10_000, ())
    assert seconds(lambda: history(ArtifactStore.open(tmp_path), SEGMENTS)) < 1.0
    assert seconds(lambda: corrected(study({"new": 0.5}), found)) < 1.0


def equal(arm: str, p_equal: float, margin: float = 0.5, p: float = 0.6) -> Asked:
    return question(arm, p, equal_margin=margin, p_equal=p_equal, p_equal_anytime=p_equal / 100)


def test_equality_is_a_question_of_the_frozen_family() -> None:
    first = study({}, cells=("base", "a", "b"), asked=(equal("a", 0.01), equal("b", 0.03)))
    assert [one.p_equal for one in answers(first)] == [pytest.approx(0.02), pytest.approx(0.06)]
    half = replace(first, asked=(equal("a", 0.01), question("b", None, equal_margin=0.5)))
    assert answers(half)[0].p_equal == pytest.approx(0.02), "what has not finished counts"
    assert answers(half, first)[1].p_equal == pytest.approx(0.06)


def test_a_margin_chosen_or_widened_after_results_is_an_afterthought() -> None:
    plain = study({"a": 0.6})
    late = replace(plain, asked=(equal("a", 1e-6),))
    (found,) = answers(plain, late)
    assert (found.basis, found.p) == ("declared", 0.6), "the difference keeps its answer"
    assert found.p_equal == pytest.approx(1e-8 / (0.1 * 3 / 8))
    assert "not declared before results were seen" in found.equal_reason
    narrow = replace(plain, asked=(equal("a", 0.2, margin=0.5),))
    wide = replace(plain, asked=(equal("a", 0.004, margin=1.0),))
    (widened,) = answers(narrow, wide)
    assert widened.p_equal == pytest.approx(0.2), "what is not within .5 is not called equal within 1"
    (narrowed,) = answers(wide, replace(plain, asked=(equal("a", 0.01, margin=0.5),)))
    assert narrowed.p_equal == pytest.approx(0.01 / 100 / (0.1 * 3 / 8))


def test_a_family_with_a_margin_keeps_its_level_while_it_can_err() -> None:
    def free(*asked: Asked) -> float:
        return Budget({1: study({}, cells=("base", "a"), asked=asked)}).free

    assert free(question("a", 0.001)) == pytest.approx(0.05), "different, and nothing else was asked"
    assert free(equal("a", 0.9, p=0.001)) == 0.0, "it may yet be called equal"
    assert free(equal("a", 0.001, p=0.9)) == 0.0
    assert free(equal("a", 0.001, p=0.001)) == pytest.approx(0.05)
