"""What counts against `max_failures`, and what does not."""

import socket

import ray

from nlgraft.execution.cluster_watch import MAX_PREEMPTIONS, Losses, is_any_lost


def lost(num_failures, num_preemptions):
    losses = Losses(max_failures=2)
    for is_preemption, number in ((False, num_failures), (True, num_preemptions)):
        for _ in range(number):
            losses.add(is_preemption=is_preemption)
    assert losses.number == num_failures + num_preemptions
    return losses


def test_each_kind_has_a_bound_of_its_own():
    assert lost(2, MAX_PREEMPTIONS).reason_to_end is None
    assert lost(3, 0).reason_to_end == "a worker was lost 3 times, resources.max_failures allows 2"
    assert lost(0, MAX_PREEMPTIONS + 1).reason_to_end == "its nodes were lost 51 times, 50 are allowed"


def test_a_node_is_lost_if_it_is_dead_unheard_of_or_does_not_answer(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as raylet, socket.create_server(("127.0.0.1", 0)) as killed:
        ports = [endpoint.getsockname()[1] for endpoint in (raylet, raylet, killed)]
        killed.close()
        nodes = [
            {"NodeID": node, "Alive": node != "b", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
            for node, port in zip("abc", ports, strict=True)
        ]
        monkeypatch.setattr(ray, "nodes", lambda: nodes)
        is_lost = {node: is_any_lost([node]) for node in "abcd"}
        assert is_lost == {"a": False, "b": True, "c": True, "d": True}
        assert is_any_lost(["a", "b"])
    assert not is_any_lost([]), "no worker had begun"
