"""The simulated ways around a verdict, and streams, at a size that shows gross errors."""

import pytest

from benchmarks.streams import Setting, simulate
from benchmarks.validity import WAYS, rates


@pytest.mark.parametrize("way", ["seeds 1-3, ..., 13-15", "worst seed replaced, three times", "5 variants"])
def test_the_ledger_stops_what_a_single_file_cannot_see(way):
    today, after = rates(WAYS[way], 400)
    assert today > 0.1
    assert after < 0.05 + 3 * 0.011


@pytest.mark.parametrize(
    "setting",
    [Setting(num_real=0), Setting(num_real=0, is_patient=True), Setting(is_informed=True)],
    ids=["none gains", "patient", "informed"],
)
def test_of_what_a_stream_keeps_at_most_one_in_ten_gains_nothing(setting):
    share = simulate(setting, 40).false_share[:, -1]
    assert share.mean() < 0.1 + 3 * 0.047


def test_a_stream_finds_gains_by_twelve_seeds_and_reports_them_without_bias():
    outcome = simulate(Setting(limit=12), 40)
    assert outcome.kept[outcome.is_real].mean() >= 0.9
    assert outcome.seeds.mean() < 8
    assert outcome.false_share[:, -1].mean() < 0.1
    assert abs((outcome.second - outcome.truth)[outcome.kept].mean()) < 0.1
