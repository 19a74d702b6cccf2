"""What a person hears of a run that waits."""

from nlgraft.basics.pacing import Wait
from nlgraft.execution.sweep import place_text, unplaced


def test_a_wait_is_told_every_thirty_seconds_and_begins_anew_after_something_ran():
    now_s = 0.0
    messages = []
    wait = Wait(messages.append, lambda: now_s)
    for now_s in (0.0, 29.0, 30.0, 31.0, 60.0, 89.0):
        waited_s = wait.poll("the lock")
        assert waited_s == now_s
    assert messages == ["waiting for 30 s: the lock", "waiting for 60 s: the lock"]
    assert wait.poll(None) == 0
    now_s = 100.0
    assert wait.poll("a place") == 0
    now_s = 131.0
    assert wait.poll("a place") == 31
    assert messages[2:] == ["waiting for 31 s: a place"]


def test_the_groups_that_wait_are_those_of_our_shape():
    def group(state, *bundles):
        return {"state": state, "bundles": dict(enumerate(bundles))}

    gpu = {"CPU": 2.0, "GPU": 0.5}
    groups = {
        "a": group("PENDING", gpu),
        "b": group("RESCHEDULING", gpu, gpu),
        "c": group("CREATED", gpu),
        "d": group("REMOVED", gpu),
        "e": group("PENDING", {"CPU": 2.0}),
    }
    assert unplaced(groups, gpu, 2) == 2
    assert unplaced(groups, gpu, 1) == 1, "the other is of another job"
    assert unplaced(groups, {"CPU": 2.0, "GPU": 0.0}, 3) == 3
    assert unplaced(groups, gpu, 0) == 0
    # four trials have no workers yet, and one group of them has its place
    assert unplaced(groups, gpu, 4) == 3
    assert unplaced({}, gpu, 1) == 1
    text = place_text(2, gpu, {"CPU": 3.0})
    assert "2 trials without a place on the cluster: each worker needs 2 CPU, 0.5 GPU" in text
    assert "free are 3 CPU, 0 GPU in all" in text
