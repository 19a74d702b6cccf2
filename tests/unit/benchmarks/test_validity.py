"""The simulated ways around a verdict, and streams, at a size that shows gross errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.streams import Setting, _run, simulate
from benchmarks.validity import WAYS, rates
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.policy.proposals import FIRST_SEEDS, LIMIT, decide


@pytest.mark.parametrize("way", ["seeds 1-3, ..., 13-15", "worst seed replaced, three times", "5 variants"])
def test_the_ledger_stops_what_a_single_file_cannot_see(way: str) -> None:
    today, after = rates(WAYS[way], 400)
    assert today > 0.1
    assert after < 0.05 + 3 * 0.011


def test_simulated_streams_decide_as_the_platform_does() -> None:
    rng = np.random.default_rng(3)
    gains = 0.7 + rng.standard_normal((60, LIMIT))
    levels = rng.choice([0.02, 0.0005], 60)
    kept, used = _run(gains, levels, Setting())

    def decided(one: Array, level: float) -> tuple[str, int]:
        looks = ((decide(one[:num], level), num) for num in range(FIRST_SEEDS, LIMIT + 1))
        return next((decision, num) for decision, num in looks if decision != "MORE")

    expected = [decided(one, level) for one, level in zip(gains, levels, strict=True)]
    assert [("KEEP" if one else "DISCARD", int(num)) for one, num in zip(kept, used, strict=True)] == expected
    assert 0 < kept.sum() < 60


@pytest.mark.parametrize(
    "setting",
    [Setting(share=0.0), Setting(is_patient=True), Setting(is_shared=True, is_informed=True)],
    ids=["none gains", "patient", "informed"],
)
def test_streams_keep_little_that_gains_nothing_whenever_they_are_stopped(setting: Setting) -> None:
    found = simulate(replace(setting, num=100), 60)
    worst = found.false_share.max(axis=1)  # stopped where it looks worst
    assert worst.mean() < 0.05 + 3 * 0.028


def test_a_stream_finds_gains_with_few_seeds_and_reports_them_without_bias() -> None:
    found = simulate(Setting(), 20)
    assert found.kept[found.is_real].mean() > 0.9
    assert found.seeds.mean() < 8
    assert found.false_share.max(axis=1).mean() < 0.05
    assert abs((found.second - found.truth)[found.kept].mean()) < 0.1
