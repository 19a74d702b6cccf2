"""The board of a sweep without Ray: batches, and CPUs that are lent."""

from __future__ import annotations

import random

import pytest

from nlgraft.execution import sweep_board
from nlgraft.execution.report_keys import OUTCOME
from nlgraft.execution.sweep_board import SweepBoard


def lending(*loans: str) -> SweepBoard:
    board = SweepBoard()
    board.assign("batch", ["a", "b"])
    board.current("batch", "node 1")
    for loan in loans:
        board.offer(loan, "batch", "upstream")
        board.lend(loan, "node 1")
    return board


def test_a_loan_is_over_once_its_borrower_computes_without_it() -> None:
    board = lending("x")
    assert board.orders("batch", "upstream") == (None, 1)
    assert board.use("batch", "upstream", 1) == 1
    assert not board.is_over("x")
    board.recall("x")
    assert board.orders("batch", "upstream") == (None, 0)
    assert not board.is_over("x"), "the borrower computes with it still"
    assert board.use("batch", "upstream", 0) == 0
    assert board.is_over("x")


def test_a_loan_that_was_recalled_meanwhile_is_not_used() -> None:
    board = lending("x", "y")
    assert board.orders("batch", "upstream") == (None, 2)
    board.recall("y")
    assert board.use("batch", "upstream", 2) == 1
    assert board.is_over("y")
    assert not board.is_over("x")


@pytest.mark.parametrize("end", ["advance", "remove", "current"])
def test_a_recalled_loan_ends_with_the_trial_or_the_process_that_used_it(end: str) -> None:
    board = lending("x")
    board.use("batch", "upstream", 1)
    board.recall("x")
    if end == "advance":
        board.advance("batch", {})
    elif end == "remove":
        board.remove("batch")
    else:
        board.current("batch", "node 1")
    assert board.is_over("x")


def test_cpus_are_lent_on_one_node_only_and_to_nobody_who_has_ended() -> None:
    board = lending()
    board.offer("far", "batch", "upstream")
    board.lend("far", "node 2")
    board.offer("late", "ended", "upstream")
    board.lend("late", "node 1")
    assert board.orders("batch", "upstream") == (None, 0)
    assert board.is_over("far")
    assert board.is_over("late")


def test_cpus_are_lent_to_one_stage() -> None:
    board = lending("x")
    assert board.orders("batch", "training") == (None, 0)
    assert board.use("batch", "training", 1) == 0
    board.offer("x", "batch", "training")
    assert board.orders("batch", "training") == (None, 1)


def test_a_loan_may_be_recalled_before_it_begins() -> None:
    board = lending()
    board.offer("x", "batch", "upstream")
    assert board.orders("batch", "upstream") == (None, 0), "its worker does something else still"
    board.recall("x")
    board.lend("x", "node 1")
    assert board.is_over("x")
    assert board.orders("batch", "upstream") == (None, 0)


def test_a_lost_lender_lends_nothing() -> None:
    board = lending("x")
    board.end_loan("x")
    assert board.orders("batch", "upstream") == (None, 0)


@pytest.mark.parametrize("seed", range(20))
def test_threads_never_exceed_the_cpus_whatever_comes_in_which_order(seed: int) -> None:
    """Borrowers, lenders and the driver talk to the board at any time; a CPU has one thread at most."""
    draw = random.Random(seed)
    board = SweepBoard()
    num_threads = dict.fromkeys(("a", "b"), 1)
    for name in num_threads:
        board.assign(name, ["spec"] * 50)
        board.current(name, "node")
    seen = dict.fromkeys(num_threads, 0)  # what the latest answer to a worker said
    parked: set[str] = set()  # workers that do nothing but lend, each with one CPU
    num_cpus = 6
    most = 0
    for number in range(600):
        name = draw.choice(list(num_threads))
        match draw.choice(["lend", "recall", "ask", "take", "poll", "poll", "advance"]):
            case "lend" if len(parked) + len(num_threads) < num_cpus:
                parked.add(f"loan {number}")
                board.offer(f"loan {number}", name, "stage")
                board.lend(f"loan {number}", "node")
            case "recall" if parked:
                board.recall(draw.choice(sorted(parked)))
            case "ask":
                seen[name] = board.orders(name, "stage")[1]
            case "take" if seen[name] > num_threads[name] - 1:
                num_threads[name] = 1 + board.use(name, "stage", seen[name])
            case "take":
                num_threads[name] = 1 + seen[name]
                board.use(name, "stage", seen[name])
            case "poll" if parked:
                loan = draw.choice(sorted(parked))
                if board.is_over(loan):
                    board.end_loan(loan)
                    parked.discard(loan)  # its CPU computes another trial from now on
            case "advance" if draw.random() < 0.1:
                num_threads[name], seen[name] = 1, 0
                board.advance(name, {})
        assert sum(num_threads.values()) <= len(num_threads) + len(parked)
        most = max(most, *num_threads.values())
    assert most > 1


def test_it_keeps_the_nodes_on_which_the_current_trial_was_lost():
    board = SweepBoard()
    board.assign("batch", ["a", "b"])
    board.current("batch", "node 1")
    assert board.lost_on("batch") == []
    board.current("batch", "node 2")
    board.current("batch", "node 2")
    assert board.lost_on("batch") == ["node 1", "node 2"]
    assert board.advance("batch", {}) == "b"
    assert board.lost_on("batch") == []
    board.current("batch", "node 3")
    assert board.lost_on("batch") == ["node 2"]


def test_it_counts_the_trials_that_have_not_begun_or_whose_group_has_no_worker():
    board = SweepBoard()
    board.assign("three", ["spec"])
    assert board.num_awaiting() == 1
    board.remove("three")
    for name in ("one", "two"):
        board.assign(name, ["spec"])
        board.current(name, "node")
        board.await_workers(name, True)
    assert board.num_awaiting() == 2
    board.await_workers("one", False)
    board.current("two", "another")  # a process that takes over asks anew
    board.await_workers("ended", True)
    assert board.num_awaiting() == 0


def test_what_trials_wait_for_is_forgotten_when_the_driver_stands_still():
    now_s = 1000.0
    board = SweepBoard(lambda: now_s)
    assert board.awaited() == []
    board.tell_awaited(["GPU"])
    now_s += 59
    assert board.awaited() == ["GPU"]
    now_s += 2
    assert board.awaited() == []


def test_a_stalled_trial_is_no_loss_of_the_next_one_of_its_batch() -> None:
    """Else a study with max_failures 0 would fail a trial that has not run."""
    board = lending()
    board.advance("batch", {OUTCOME: "stalled"})
    assert board.num_awaiting() == 1
    assert board.current("batch", "node 2") == "b"
    assert board.lost_on("batch") == []
    assert board.current("batch", "node 3") == "b"
    assert board.lost_on("batch") == ["node 2"], "a process that is lost while it computes"


def test_a_host_whose_disk_is_full_is_left_out_while_others_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(sweep_board.time, "monotonic", lambda: now_s)
    board = SweepBoard()
    for batch, node in (("first", "full"), ("second", "full"), ("third", "sound")):
        board.assign(batch, ["x", "y"])
        board.current(batch, node)
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
    board.current("second", "full")
    assert not board.leave_out("second", is_new=True), "nobody else would go on"
    board.advance("second", {OUTCOME: "ended"})
    assert board.leave_out("second", is_new=True), "it has computed in between"
