"""What counts against `max_failures`, and what does not."""

from __future__ import annotations

import pytest
import ray

from nlgraft.execution.losses import MAX_PREEMPTIONS, Losses, is_any_lost


def lost(num_failures: int, num_preemptions: int) -> Losses:
    found = Losses(max_failures=2)
    for is_preemption, number in ((False, num_failures), (True, num_preemptions)):
        for _ in range(number):
            found.add(is_preemption=is_preemption)
    assert found.number == num_failures + num_preemptions
    return found


def test_each_kind_has_a_bound_of_its_own() -> None:
    assert lost(2, MAX_PREEMPTIONS).reason_to_end is None
    assert lost(3, 0).reason_to_end == "a worker was lost 3 times, resources.max_failures allows 2"
    assert lost(0, MAX_PREEMPTIONS + 1).reason_to_end == "its nodes were lost 51 times, 50 are allowed"


def test_a_node_is_lost_if_it_is_dead_or_unheard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": False}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    found = {node: is_any_lost([node]) for node in "abc"}
    assert found == {"a": False, "b": True, "c": True}
    assert is_any_lost(["a", "b"])
    assert not is_any_lost([]), "no worker had begun"
