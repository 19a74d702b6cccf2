"""The simulated ways around a verdict, and streams, at a size that shows gross errors."""

from __future__ import annotations

import pytest

from benchmarks.streams import Setting, simulate
from benchmarks.validity import WAYS, rates


@pytest.mark.parametrize("way", ["seeds 1-3, ..., 13-15", "worst seed replaced, three times", "5 variants"])
def test_the_ledger_stops_what_a_single_file_cannot_see(way: str) -> None:
    today, after = rates(WAYS[way], 400)
    assert today > 0.15
    assert after < 0.05 + 3 * 0.011


def test_a_stream_finds_gains_with_few_seeds_and_reports_them_without_bias() -> None:
    found = simulate(Setting(), 20)
    assert found.kept[found.is_real].mean() > 0.9
    assert found.seeds.mean() < 8
    assert found.false_share.max(axis=1).mean() < 0.05
    assert abs((found.second - found.truth)[found.kept].mean()) < 0.1
