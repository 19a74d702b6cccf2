"""The simulated sweep against bounds that hold for every schedule."""

import random

import pytest

from benchmarks import simulation
from benchmarks.simulation import ELSEWHERE_S, simulate


@pytest.mark.parametrize(("num_trials", "num_nodes"), [(40, 1), (60, 8)])
def test_no_sweep_is_shorter_than_its_work_divided_evenly(num_trials, num_nodes):
    sweep = simulate(num_trials, num_nodes, trial_s=60.0)
    lengths = random.Random(1)
    work_s = sum(60.0 * lengths.lognormvariate(-0.125, 0.5) for _ in range(num_trials))
    assert sweep.num_trials == num_trials
    assert sweep.makespan_s >= sweep.shortest_s >= work_s / num_nodes - 1e-6
    if num_nodes == 1:  # then the driver's work adds up, and nothing else does
        assert sweep.shortest_s == pytest.approx(work_s)
        assert sweep.makespan_s > work_s + num_trials * sum(ELSEWHERE_S.values())
    assert {"planning", "queue", "store", "tracker"} == set(sweep.seconds)


def test_the_slowest_part_is_named(monkeypatch):
    monkeypatch.setattr(simulation, "NUM_TRIALS", 30)
    monkeypatch.setattr(simulation, "NUM_NODES", 3)
    monkeypatch.setitem(ELSEWHERE_S, "MLflow's writes*", 9.0)
    lines = simulation.report()
    assert lines[0] == "## 30 trials of 60 s on 3 nodes, simulated"
    assert "- The slowest part is MLflow's writes*; the nodes end 0.1 trials a second." in lines
