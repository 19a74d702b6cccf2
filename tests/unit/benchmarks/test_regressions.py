"""Slower than the last dated result: what is named, and what is noise."""

import pytest

from benchmarks.__main__ import RESULTS
from benchmarks.measure import Rates, table
from benchmarks.regressions import figures, regressions


def result(ratio, *, peer="0.5 (0.4-0.6)", cpu_s="5.0", heading="Training"):
    return "\n".join(
        [
            "# 2026-01-01",
            "",
            f"## {heading}",
            "",
            "| system | tokens per CPU-s (range) | ratio to Marian (range over rounds) |",
            "|---|---|---|",
            f"| nlgraft | 900 (800-1000) | {ratio} |",
            f"| Marian, its Trainer | 450 (400-500) | {peer} |",
            "",
            "| similar tokens | CPU-s |",
            "|---|---|",
            f"| 32,000 tokens | {cpu_s} |",
            "",
        ]
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "2026-01-01.md").write_text(result("1.00 (0.90-1.10)"))
    (tmp_path / "2026-01-02.md").write_text(result("1.50 (1.40-1.60)"))
    (tmp_path / "2026-01-02-mutation.md").write_text(result("9.00 (9.00-9.00)"))
    (tmp_path / "2026-01-03.md").write_text(result("2.00 (1.90-2.10)", heading="Decoding", cpu_s="1.0"))
    return tmp_path


SAME = "1.50 (1.40-1.60)"


@pytest.mark.parametrize(
    ("new", "before", "named"),
    [
        (result("1.60 (1.50-1.70)"), "2026-01-04", []),  # faster
        (result("1.45 (1.40-1.50)"), "2026-01-04", []),  # the last range holds it
        (result("1.30 (1.10-1.55)"), "2026-01-04", []),  # its range holds the last median
        (result(SAME, peer="0.1 (0.1-0.1)"), "2026-01-04", []),
        (result("1.00 (0.90-1.10)"), "2026-01-02", []),  # compared with earlier ones only
        (result("1.00 (0.90-1.10)"), "2026-01-01", []),
        # CPU seconds may vary by half.
        (result(SAME, cpu_s="7.4"), "2026-01-04", []),
        (result(SAME, cpu_s="7.6 (9 for all)"), "2026-01-04", ["Training / 32,000 tokens / CPU-s"]),
        (result(SAME, cpu_s="4.0"), "2026-01-04", []),
    ],
)
def test_what_is_slower_is_named_and_noise_and_gains_are_not(folder, new, before, named):
    assert [line.partition(":")[0] for line in regressions(new, folder, before=before)] == named


def test_a_lower_ratio_is_named_with_both_and_the_date(folder):
    assert regressions(result("1.30 (1.20-1.45)"), folder, before="2026-01-04") == [
        "Training / nlgraft / ratio to Marian (range over rounds): 1.3 (1.2-1.45), "
        "on 2026-01-02 it was 1.5 (1.4-1.6)"
    ]


def test_other_processors_are_left_out(folder):
    slow = result("1.00 (0.90-1.10)")
    (folder / "2026-01-04.md").write_text(f"{result('3.00 (2.90-3.10)')}Processor: AMD\n")
    (folder / "2026-01-05.md").write_text(f"{result('4.00 (3.90-4.10)')}Processor: Intel\n")
    for cpu, date in (("AMD", "2026-01-04"), ("Intel", "2026-01-05"), ("Arm", "2026-01-02")):
        (line,) = regressions(f"{slow}Processor: {cpu}\n", folder, before="2026-01-06")
        assert f"on {date} it was" in line


def test_short_times_are_noise(tmp_path):
    (tmp_path / "2026-01-01.md").write_text(result("1.00 (0.90-1.10)", cpu_s="0.2"))
    assert regressions(result("1.00 (0.90-1.10)", cpu_s="0.6"), tmp_path, before="2026-01-04") == []


def test_before_and_after_and_rates_are_no_figures_of_a_date():
    table = ["| what | before | sentences per CPU-s | CPU-s |", "|---|---|---|---|"]
    row = "| nlgraft | 0.49 (0.48-0.50) | 91 | 3.0 |"
    assert [place[2] for place in figures("\n".join(["## Decoding", *table, row]))] == ["CPU-s"]
    dated = RESULTS / "2026-11-24.md"
    places = figures(dated.read_text("utf-8"))
    assert {place[1] for place in places if place[0].startswith("Training")} == {"nlgraft"}
    assert not [place for place in places if "before" in " ".join(place)]


def test_tables_of_measurements_are_read():
    rates = Rates("tokens", {"nlgraft": [10.0, 12.0, 11.0], "Marian": [5.0, 6.0, 5.0]})
    (place, figure), *others = figures("\n".join(["## Training", *table(rates, "Marian")])).items()
    assert place == ("Training", "nlgraft", "ratio to Marian (range over rounds)")
    assert (figure.value, figure.low, figure.high) == (2.2, 2.0, 2.2)
    assert others == []
