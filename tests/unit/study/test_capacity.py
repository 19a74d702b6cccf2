"""Trials that fit a cluster."""

import pytest

from nlgraft.study.data.study import Resources
from nlgraft.study.planning.cost import capacity_problems, max_concurrent

SOME = {"min": 2, "max": 4}


@pytest.mark.parametrize(
    "resources, capacity, count",
    [
        ({}, {"CPU": 2}, 2),
        ({"workers": 2, "cpus_per_worker": 3}, {"CPU": 5}, 0),
        ({"gpus_per_worker": 1.0, "workers": 3}, {"CPU": 16, "GPU": 8}, 2),
        ({"gpus_per_worker": 0.4}, {"CPU": 16, "GPU": 2}, 4),  # two on each device, not five in all
        ({"gpus_per_worker": 0.1}, {"CPU": 16, "GPU": 1}, 10),
        ({"max_concurrent": 1}, {"CPU": 8}, 1),
        ({"gpus_per_worker": 1.0}, {"CPU": 8}, 0),
        ({"max_cpus": 3}, {"CPU": 8}, 3),
        ({"workers": 2, "cpus_per_worker": 2, "max_cpus": 11}, {"CPU": 64}, 2),
        ({"gpus_per_worker": 0.5, "max_gpus": 1.5}, {"CPU": 16, "GPU": 8}, 3),
        ({"max_gpus": 1.0}, {"CPU": 8}, 8),  # a trial without GPUs holds none
        ({"max_cpus": 4, "max_concurrent": 3}, {"CPU": 8}, 3),
        # with a range of workers: as many with the most as fit, and one with what is left
        ({"workers": SOME}, {"CPU": 3}, 1),
        ({"workers": SOME}, {"CPU": 10}, 3),
        ({"workers": SOME}, {"CPU": 1}, 0),
        ({"workers": SOME, "max_cpus": 8}, {"CPU": 64}, 2),
        ({"workers": {"min": 1, "max": 3}, "gpus_per_worker": 1}, {"CPU": 8, "GPU": 4}, 2),
    ],
)
def test_trials_at_once(resources, capacity, count):
    assert max_concurrent(Resources(**resources), capacity) == count


def test_what_can_never_fit_says_what_is_missing():
    resources = Resources(workers=3, gpus_per_worker=1.0)
    (problem,) = capacity_problems(resources, {"CPU": 4})
    assert problem.path == "resources.gpus_per_worker"
    assert problem.message.startswith("asks for 3 GPUs per trial (3 workers x 1), the cluster has 0")
    both = capacity_problems(resources, {"CPU": 1}, "this machine")
    assert [fault.path for fault in both] == ["resources.cpus_per_worker", "resources.gpus_per_worker"]
    assert "asks for 3 CPUs per trial (3 workers x 1), this machine has 1" in both[0].message
    assert capacity_problems(resources, {"CPU": 3, "GPU": 3}) == []


def test_a_range_of_workers_needs_room_for_the_fewest_alone():
    resources = Resources(workers={"min": 2, "max": 8})
    assert capacity_problems(resources, {"CPU": 2}) == []
    (problem,) = capacity_problems(resources, {"CPU": 1})
    assert problem.message.startswith("asks for 2 CPUs per trial (at least 2 workers x 1), the cluster has 1")
