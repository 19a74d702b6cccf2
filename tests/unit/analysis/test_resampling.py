"""Hand-computable values of the resampling arithmetic, and its agreement with sacreBLEU."""

import hashlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest, _compute_p_value

from nlgraft.analysis.estimates.resampling import (
    bootstrap_counts,
    bootstrap_scores,
    holm_either,
    interval,
    p_value,
    spread,
)
from nlgraft.evaluation.sufficient import aggregate, segment_rows

WORDS = [f"w{index}" for index in range(40)]


def mean_score(sums):
    return sums[..., 0] / sums[..., 1]


def texts(num_segments, noise_a, noise_b, seed=3):
    rng = np.random.default_rng(seed)
    references = [list(rng.choice(WORDS, rng.integers(5, 15))) for _ in range(num_segments)]

    def system(noise):
        return [
            " ".join(word if rng.random() > noise else rng.choice(WORDS) for word in line)
            for line in references
        ]

    return system(noise_a), system(noise_b), [" ".join(line) for line in references]


def test_each_resample_draws_as_many_segments_as_there_are():
    counts = np.concatenate(list(bootstrap_counts(50, 400)))
    assert counts.shape == (400, 50)
    assert (counts.sum(axis=1) == 50).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(50), abs=0.25)


def test_counts_do_not_depend_on_the_chunks(monkeypatch):
    whole = np.concatenate(list(bootstrap_counts(30, 100)))
    monkeypatch.setattr("nlgraft.analysis.estimates.resampling._COUNT_CELLS", 210)
    chunks = list(bootstrap_counts(30, 100))
    assert len(chunks) == 15
    assert (np.concatenate(chunks) == whole).all()


def test_bootstrap_scores_equal_scoring_every_resample():
    rng = np.random.default_rng(0)
    systems = [rng.random((20, 2)) + 0.5 for _ in range(3)]
    scores = bootstrap_scores(systems, mean_score, 50)
    drawn = np.random.default_rng(12345).choice(20, size=(50, 20), replace=True)
    for system, row in zip(systems, scores, strict=True):
        assert row == pytest.approx([mean_score(system[index].sum(0)) for index in drawn])


def test_p_is_never_below_one_over_samples_plus_one():
    assert p_value(5.0, np.linspace(-1, 1, 999)) == 1 / 1000
    assert p_value(1.0, np.array([-2.0, 0.0, 0.5])) == 2 / 4


def test_a_tie_counts_against_the_difference():
    assert p_value(0.3, np.array([0.1 + 0.2, -0.3, 0.0])) == 3 / 4


def test_interval_is_the_percentiles_around_the_difference():
    assert interval(10.0, np.linspace(-1, 1, 2001), 0.05) == pytest.approx((9.05, 10.95))


def test_holm_by_hand():
    # sorted: .01*4, .02*3, .03*2, .2*1, made monotone
    adjusted = holm_either([(p, None) for p in (0.02, 0.2, 0.01, 0.03)])
    assert [p for p, _ in adjusted] == pytest.approx([0.06, 0.2, 0.04, 0.06])
    assert holm_either([(0.5, None), (None, None), (0.9, None)]) == [(1.0, None), (None, None), (1.0, None)]
    assert holm_either([]) == []


def test_spread_of_one_seed_is_the_segment_draws():
    draws = np.array([[1.0, 2.0, 6.0]])
    errors, estimate = spread(np.array([3.0]), draws, 3)
    assert errors == pytest.approx([-2.0, -1.0, 3.0])
    assert estimate.df == 0, "nothing is known of the variance between seeds"


def test_interaction_of_seed_and_segment_is_not_counted_twice():
    rng = np.random.default_rng(1)
    segments, seeds = 400, 40
    cells = rng.standard_normal((seeds, segments, 1))
    with_count = np.concatenate([cells, np.ones_like(cells)], axis=2)
    draws = bootstrap_scores(list(with_count), mean_score, 2000)
    _, estimate = spread(cells.mean(axis=(1, 2)), draws, 2000)
    # no segment effect was put in: everything is interaction and shows between the seeds
    assert estimate.variance == pytest.approx(1 / segments, rel=0.4)
    assert estimate.segment_variance < 0.2 / (seeds * segments) + 1e-4


@pytest.mark.parametrize("noises", [(0.30, 0.33), (0.30, 0.31), (0.3, 0.5)])
@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_p_agrees_with_sacrebleus_two_sided_test(name, noises):
    """Approximate randomisation; its paired bootstrap counts one tail only."""
    a, b, references = texts(150, *noises)
    metric = BLEU() if name == "bleu" else CHRF()
    _, scores = PairedTest(
        [("base", b), ("ours", a)], {"M": metric}, [references], test_type="ar", n_samples=500
    )()
    expected = next(row for key, row in scores.items() if key != "System")[1]
    statistics = [segment_rows(name, side, references)[0] for side in (a, b)]
    score = partial(aggregate, name)
    ours, base = (float(score(rows.sum(0))) for rows in statistics)
    draws = bootstrap_scores(statistics, score, 500)
    gaps = draws[0] - draws[1]
    assert expected.score == pytest.approx(ours, abs=1e-9)
    assert p_value(ours - base, gaps - gaps.mean()) == pytest.approx(expected.p_value, abs=0.06)


def test_bootstrap_draws_are_those_of_sacrebleu():
    a, b, references = texts(150, 0.30, 0.33)
    _, scores = PairedTest(
        [("base", b), ("ours", a)], {"M": BLEU()}, [references], test_type="bs", n_samples=500
    )()
    expected = scores["BLEU"][1]
    statistics = [segment_rows("bleu", side, references)[0] for side in (a, b)]
    bleu = partial(aggregate, "bleu")
    draws = bootstrap_scores(statistics, bleu, 500)
    assert draws[0].mean() == pytest.approx(expected.mean, abs=1e-4)
    gaps = np.abs(draws[0] - draws[1])
    difference = float(bleu(statistics[0].sum(0)) - bleu(statistics[1].sum(0)))
    recomputed = _compute_p_value(gaps - gaps.mean(), abs(difference))
    assert recomputed == pytest.approx(expected.p_value, abs=2 / 501)
    # Theirs counts one tail of |d*| - mean |d*|, ours both tails of d* - mean d*.
    gaps = draws[0] - draws[1]
    assert p_value(difference, gaps - gaps.mean()) >= expected.p_value


def test_the_digits_are_the_same_in_another_process_with_other_threads():
    code = (
        "import hashlib, numpy as np\n"
        "from nlgraft.analysis.estimates.resampling import *\n"
        "r = np.random.default_rng(5)\n"
        "s = [r.integers(0, 9, (300, 10)).astype(float) + 1 for _ in range(4)]\n"
        "f = lambda x: x[..., 0] / x[..., 1]\n"
        "d = bootstrap_scores(s, f, 200)\n"
        "e = spread(np.array([1.0, 2.0]), d[:2] - d[2:], 200)[0]\n"
        "print(hashlib.sha256(e.tobytes() + d.tobytes()).hexdigest())\n"
    )
    platform = str(Path(__file__).parents[3] / "platform")
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": platform, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == len(hashlib.sha256().hexdigest())
