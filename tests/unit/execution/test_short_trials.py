"""Short trials of the work queue are handed out several at a time."""

from dataclasses import replace

import pytest

from nlgraft.pipeline.trial import trial_record
from tests.small_studies import SHARE
from tests.unit.execution.queue_bench import Bench, short_study


def timed(bench, trial, seconds):
    """End a trial whose record says that it took so long."""
    record = replace(bench.run_only(trial), started_at=1000.0, ended_at=1000.0 + seconds)
    bench.queue.end(trial, record)


def seeds(trials):
    return [trial.seed for trial in trials]


def after_four(bench, seconds=0.001, last=None):
    """The next trial, once there are durations to expect of it; the last of them may take longer."""
    for duration_s in [seconds] * 3 + [last or seconds]:
        trial = bench.start()
        assert bench.queue.take_following(trial) == []
        timed(bench, trial, duration_s)
    return bench.start()


def test_trials_are_handed_out_several_at_a_time_once_some_like_them_were_short(
    toy_document,
):
    bench = Bench(short_study(toy_document, 40))
    first = after_four(bench, 0.06)
    following = bench.queue.take_following(first)
    assert seeds([first, *following]) == [5, 6, 7, 8, 9, 10, 11, 12]  # 8 of .06 s in half a second
    assert (len(bench.queue.running), bench.queue.num_idle) == (8, 1)
    second = bench.start()
    assert seeds([second, *bench.queue.take_following(second)])[0] == 13
    assert bench.queue.num_idle == 0
    assert bench.take() is None
    timed(bench, first, 0.06)
    for trial in reversed(following):
        bench.queue.give_back(trial)
    again = bench.start()
    assert seeds([again, *bench.queue.take_following(again)]) == [6, 7, 8, 9, 10, 11, 12, 21]


@pytest.mark.parametrize("seconds", [0.3, 100.0])
def test_one_long_trial_ends_batches(toy_document, seconds):
    bench = Bench(short_study(toy_document, 40))
    trial = after_four(bench, 0.01, seconds)
    assert bench.queue.take_following(trial) == []


def test_what_waits_is_divided_among_the_workers_and_a_budget_holds(toy_document):
    bench = Bench(short_study(toy_document, 10))
    assert seeds(bench.queue.take_following(after_four(bench))) == [6, 7, 8], "5 are left for 2 workers"
    toy_document["budget"] = {"trials": 6}
    toy_document["storage"]["path"] += "-two"
    bench = Bench(short_study(toy_document, 10))
    assert seeds(bench.queue.take_following(after_four(bench))) == [6], "a budget of 6 trials"


def run_one_and_begin_two(document):
    bench = Bench(short_study(document, 3))
    bench.run(bench.start())
    return bench, bench.start(), bench.start()


def test_an_interrupted_sweep_keeps_what_its_workers_have_finished_before_it_heard(
    toy_document,
):
    bench, finished, unfinished = run_one_and_begin_two(toy_document)
    bench.run_only(finished)
    for trial in bench.queue.running:
        bench.queue.kill(trial, "a signal")
    assert bench.queue.is_done
    states = {event.trial.seed: event.record.state for event in bench.ended()}
    assert states == {1: "finished", 2: "finished", 3: "killed"}
    stored = [trial_record(bench.store, trial.fingerprint) for trial in (finished, unfinished)]
    assert [record.state for record in stored if record is not None] == ["finished", "killed"]
    assert Bench(toy_document).queue.num_reused == 2


def test_a_trial_whose_process_dies_after_its_end_has_finished(toy_document):
    bench, finished, killed = run_one_and_begin_two(toy_document)
    record = bench.run_only(finished)
    assert bench.queue.lost(finished, "out of memory") == record
    assert bench.queue.lost(killed, "out of memory").state == "failed"
    stored = [trial_record(bench.store, trial.fingerprint) for trial in (finished, killed)]
    assert [ended.state for ended in stored if ended is not None] == ["finished", "failed"]


@pytest.mark.parametrize("sampler, num_following", [("random", 7), ("tpe", 0)])
def test_a_search_proposes_ahead_only_if_results_change_no_proposal(toy_document, sampler, num_following):
    toy_document["factors"] = {}
    toy_document["search"] = {
        "sampler": {"name": sampler, "seed": 1},
        "space": {"gain": SHARE},
        "trials": 40,
    }
    bench = Bench(toy_document)
    first = after_four(bench, 0.06)
    following = bench.queue.take_following(first)
    assert [trial.number for trial in following] == list(range(5, 5 + num_following))
