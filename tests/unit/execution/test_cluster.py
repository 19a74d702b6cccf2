"""Trials that fit a cluster, and trials that are refused, before Ray is started."""

import pytest

from nlgraft.basics.errors import CapacityError
from nlgraft.execution.cluster import check_fit, local_capacity
from nlgraft.study.data.study import Resources


@pytest.mark.parametrize(
    ("shape", "capacity", "expected"),
    [
        ({}, {"CPU": 2}, 2),
        ({"cpus_per_worker": 2}, {"CPU": 3}, 1),
        ({"workers": 2}, {"CPU": 8}, 4),
        ({"workers": 2, "gpus_per_worker": 1}, {"CPU": 64, "GPU": 5}, 2),
        ({"gpus_per_worker": 0.5}, {"CPU": 64, "GPU": 2}, 4),
        ({"max_concurrent": 3}, {"CPU": 64}, 3),
        ({"max_concurrent": 3}, {"CPU": 2}, 2),
    ],
)
def test_concurrency_is_the_least_of_all_resources(shape, capacity, expected):
    assert check_fit(Resources.model_validate(shape), capacity, "here") == expected


def test_what_never_fits_is_refused_with_what_is_missing():
    resources = Resources(workers=3, gpus_per_worker=1)
    with pytest.raises(CapacityError, match=r"3 GPUs per trial \(3 workers x 1\), this machine has 0"):
        check_fit(resources, {"CPU": 64.0, "GPU": 0.0}, "this machine")


def test_local_gpus_follow_cuda_visible_devices(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert local_capacity()["GPU"] == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_capacity()["GPU"] == 0
