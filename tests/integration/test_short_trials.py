"""Ten thousand trials that do nothing: each there once, and the driver stays small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import many_trials
from benchmarks.overhead import empty_study
from nlgraft import api


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_trials_are_each_there_once_and_the_driver_stays_small(tmp_path: Path) -> None:
    course = many_trials.run_once(tmp_path)
    assert len(course.trials_s) == many_trials.NUM_TRIALS
    growth = course.resident_mib[many_trials.NUM_TRIALS] / course.resident_mib[many_trials.NUM_WARM]
    assert growth < 1.2
    study = empty_study(tmp_path, many_trials.NUM_TRIALS, many_trials.NUM_WORKERS)
    for _ in range(9):  # a run waits 30 s for MLflow to take what is left; the next ones add it
        many_trials.run_once(tmp_path)
        verified = api.verify(study, tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
        if not verified.findings:
            break
    assert (verified.num_planned, verified.findings) == (many_trials.NUM_TRIALS, ())
