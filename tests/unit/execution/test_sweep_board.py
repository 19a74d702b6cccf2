"""The board of a sweep without Ray: batches, and the workers that are lost or have not begun."""

from nlgraft.execution import sweep_board
from nlgraft.execution.sweep_board import Outcome, SweepBoard


def test_it_keeps_the_nodes_on_which_the_current_trial_was_lost():
    board = SweepBoard()
    board.assign("batch", ["a", "b"])
    assert board.begin("batch", "node 1") == ("a", [], False)
    board.begin("batch", "node 2")
    assert board.begin("batch", "node 2") == ("a", ["node 1", "node 2"], False)
    assert board.advance("batch", Outcome("ended")) == "b"
    assert board.begin("batch", "node 3") == ("b", ["node 2"], False)


def test_it_counts_the_trials_that_have_not_begun_or_whose_group_has_no_worker():
    board = SweepBoard()
    board.assign("three", ["spec"])
    assert board.num_waiting() == 1
    board.remove("three")
    for name in ("one", "two"):
        board.assign(name, ["spec"])
        board.begin(name, "node")
        board.note_waiting(name, True)
    assert board.num_waiting() == 2
    board.note_waiting("one", False)
    board.begin("two", "another")  # a process that takes over asks anew
    board.note_waiting("ended", True)
    assert board.num_waiting() == 0


def test_a_host_whose_disk_is_full_is_left_out_while_others_compute(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(sweep_board.time, "monotonic", lambda: now_s)
    board = SweepBoard()
    for batch, node in (("first", "full"), ("second", "full"), ("third", "sound")):
        board.assign(batch, ["x", "y"])
        board.begin(batch, node)
    assert board.leave_out("first", is_new=True)
    assert board.withdraw("first") == 0, "others get its trials"
    assert [board.is_left_out(batch) for batch in ("first", "second", "third")] == [True, True, False]
    board.request_stop("first", "no trial is left")
    assert not board.is_left_out("first")
    now_s = 61.0
    assert not board.is_left_out("second")
    assert board.leave_out("second", is_new=True), "the third still computes"
    now_s = 122.0
    board.remove("third")
    board.begin("second", "full")
    assert not board.leave_out("second", is_new=True), "nobody else would go on"
    board.advance("second", Outcome("ended"))
    assert board.leave_out("second", is_new=True), "it has computed in between"
