"""An idle worker lends its CPUs to the stage that all others wait for."""

from __future__ import annotations

from typing import Any

from nlgraft.pipeline.execute import execute_stage
from nlgraft.pipeline.stage import NullReporter
from tests.unit.execution.queue_bench import Bench, short_study


def test_a_trial_that_the_others_wait_for_borrows_the_cpus_of_an_idle_worker(
    toy_document: dict[str, Any],
) -> None:
    bench = Bench(short_study(toy_document, 3))
    borrower = bench.start()
    assert bench.take() is None
    assert bench.queue.lend() is None, "they have only begun to wait"
    bench.clock_s += 2.0
    upstream = borrower.graph.find("upstream")
    assert bench.queue.lend() == (borrower, upstream.fingerprint)
    assert bench.queue.num_idle == 0
    assert bench.queue.lend() is None, "no further worker is idle"
    assert bench.queue.stage_of_loan(borrower) == upstream.fingerprint
    execute_stage(upstream, bench.store, reporter=NullReporter())
    bench.clock_s += 10.0
    assert bench.queue.stage_of_loan(borrower) is None, "it computes on, but nobody waits any more"
    assert bench.take() is None, "the CPUs are not back yet"
    bench.queue.end_loan(is_refused=False)
    assert bench.take() is not None


def test_a_worker_on_another_node_is_not_asked_again_at_once(toy_document: dict[str, Any]) -> None:
    bench = Bench(short_study(toy_document, 3))
    assert bench.take() is not None
    assert bench.queue.lend() is None
    bench.clock_s += 2.0
    assert bench.queue.lend() is not None
    bench.queue.end_loan(is_refused=True)
    bench.clock_s += 30.0
    assert bench.queue.lend() is None
    bench.clock_s += 31.0
    assert bench.queue.lend() is not None


def test_a_trial_that_nobody_waits_for_borrows_nothing(toy_document: dict[str, Any]) -> None:
    bench = Bench(short_study(toy_document, 1))
    assert bench.take() is not None
    for _ in range(3):
        assert bench.take() is None
        assert bench.queue.lend() is None


def test_nothing_is_lent_while_another_trial_could_start(toy_document: dict[str, Any]) -> None:
    toy_document["factors"] = {"gain": {"target": "upstream", "levels": [0, 1], "baseline": 0}}
    toy_document["seeds"] = [1, 2]
    bench = Bench(toy_document)
    bench.start()
    for _ in range(3):  # the other upstream training has not started
        bench.clock_s += 10.0
        assert bench.queue.lend() is None
    assert bench.take() is not None
    assert bench.queue.lend() is None, "both workers compute"


def test_lent_cpus_are_wanted_back_when_another_trial_can_start(toy_document: dict[str, Any]) -> None:
    toy_document["factors"] = {"gain": {"target": "upstream", "levels": [0, 1], "baseline": 0}}
    toy_document["seeds"] = [1, 2]
    bench = Bench(toy_document, max_concurrent=3)
    first, second = bench.start(), bench.start()
    assert bench.take() is None
    assert bench.queue.lend() is None
    bench.clock_s += 2.0
    lent = bench.queue.lend()
    assert lent is not None
    borrower, _ = lent
    assert borrower in (first, second)
    other = second if borrower == first else first
    bench.run(other)
    bench.clock_s += 10.0
    assert bench.queue.stage_of_loan(borrower) is None, "what waited for the other one can start"
