"""Comparison of benchmark results with earlier ones, by hand-made results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measure import Rates, table
from benchmarks.regressions import Ratio, compare, earlier, last_ratios, read_ratios, regressions

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
OLD = """# 2026-01-02

2 CPUs, one thread.

## Training

| system | target tokens per CPU-s (range) | ratio to Marian, our batches (range over rounds) |
|---|---|---|
| nlgraft | 1390 (1238-1595) | 1.26 (1.15-1.64) |
| Marian, our batches | 1100 (913-1219) | 1.00 (1.00-1.00) |
| Marian, its Trainer | 529 (417-585) | 0.48 (0.41-0.64) |
| nlgraft, bf16 | 1834 (1572-1997) | 1.67 (1.35-2.19) |

Ratios of nlgraft to the peers:

- Marian, our batches: 1.26 (1.15-1.64 over rounds), aim 1.1
- Marian, its Trainer: 2.63 (2.39-3.32 over rounds), aim 2.0
- nlgraft to the GEMM limit: 0.72 (0.64-0.82)
- CTranslate2 fp32 to the GEMM limit: 0.90 (0.80-0.97)
- Trials: 18.8 per second, 0.050 CPU-s each
"""
KNOWN = {
    ("Training", "nlgraft", "Marian, our batches"): Ratio(1.26, 1.15, 1.64),
    ("Training", "nlgraft, bf16", "Marian, our batches"): Ratio(1.67, 1.35, 2.19),
    ("Training", "nlgraft", "Marian, its Trainer"): Ratio(2.63, 2.39, 3.32),
    ("Training", "nlgraft", "GEMM limit"): Ratio(0.72, 0.64, 0.82),
}


@pytest.fixture
def results(tmp_path):
    (tmp_path / "2026-01-02.md").write_text(OLD)
    return tmp_path


def changed(old: str, new: str) -> str:
    assert old in OLD
    return OLD.replace(old, new)


def test_our_ratios_are_read_and_no_times_and_no_peers():
    assert read_ratios(OLD) == KNOWN


def test_what_the_benchmarks_write_is_read():
    rates = Rates("sentences", {"ours": [30.0, 33.0, 36.0], "theirs": [20.0, 30.0, 24.0]})
    text = "\n".join(["## Decoding", "", *table(rates, "theirs")])
    assert read_ratios(text) == {("Decoding", "ours", "theirs"): Ratio(1.38, 1.10, 1.50)}


def test_ratios_between_sizes_are_not_compared():
    assert read_ratios(OLD.replace("## Training", "## Growth of cost").split("Ratios of")[0]) == {}


def test_nothing_has_changed(results):
    assert list(regressions(OLD, earlier(results, "2026-01-03"))) == []


@pytest.mark.parametrize(
    ("measured", "is_slower"),
    [
        ("1.05 (1.00-1.14)", True),
        ("1.05 (1.00-1.20)", False),  # the ranges overlap
        ("1.14 (1.13-1.14)", False),  # less than a tenth
        ("2.00 (1.90-2.10)", False),  # faster
    ],
)
def test_a_ratio_is_slower_if_it_is_below_all_earlier_rounds_and_by_a_tenth(results, measured, is_slower):
    text = changed("| 1.26 (1.15-1.64) |", f"| {measured} |").replace("- Marian, our batches: 1.26", "- left")
    found = list(regressions(text, earlier(results, "2026-01-03")))
    sentence = (
        f"Training: nlgraft is {measured} of Marian, our batches, and was 1.26 (1.15-1.64) in 2026-01-02."
    )
    assert found == [sentence] * is_slower


def test_a_peer_that_became_slower_is_no_regression(results):
    text = changed("| 0.48 (0.41-0.64) |", "| 0.10 (0.09-0.11) |")
    assert list(regressions(text, earlier(results, "2026-01-03"))) == []


def test_each_ratio_is_compared_with_its_newest_result(results):
    newer = changed("1.67 (1.35-2.19)", "3.00 (2.90-3.10)").split("Ratios of")[0]
    (results / "2026-01-05.md").write_text(newer)
    (results / "notes.md").write_text(OLD)
    known = last_ratios(earlier(results, "2026-02-01"))
    assert {key: when for key, (when, _) in known.items()} == {
        ("Training", "nlgraft", "Marian, our batches"): "2026-01-05",
        ("Training", "nlgraft, bf16", "Marian, our batches"): "2026-01-05",
        ("Training", "nlgraft", "Marian, its Trainer"): "2026-01-02",
        ("Training", "nlgraft", "GEMM limit"): "2026-01-02",
    }
    assert len(list(regressions(OLD, earlier(results, "2026-02-01")))) == 1
    assert list(regressions(OLD, earlier(results, "2026-01-05"))) == [], "results of that day do not count"


def test_a_regression_ends_with_exit_code_1_and_a_sentence(results, capsys):
    compare(OLD, results, "2026-01-03")
    assert capsys.readouterr().err == ""
    slower = changed("| 1.26 (1.15-1.64) |", "| 1.05 (1.00-1.14) |").split("Ratios of")[0]
    with pytest.raises(SystemExit) as ended:
        compare(slower, results, "2026-01-03")
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "regression: Training: nlgraft is 1.05 (1.00-1.14) of Marian, our batches, and was 1.26 (1.15-1.64) "
        "in 2026-01-02.\n"
    )


def test_the_results_of_this_project_hold_ratios():
    known = last_ratios(earlier(RESULTS, "9999"))
    training = "Training, 4096 tokens a batch: a study's own stage"
    assert known[training, "nlgraft", "Marian, our batches"][0] >= "2026-11-22"
    assert len(known) > 10
