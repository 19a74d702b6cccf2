"""The work queue without Ray: what a search proposes, and when."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from nlgraft.basics.errors import StudyLockedError
from nlgraft.execution.events import CellSearched
from nlgraft.execution.status import read_status
from nlgraft.study.data.design import cells
from nlgraft.study.planning.selection import chosen_params
from tests.small_studies import SHARE
from tests.unit.execution.queue_bench import Bench

ANY = TypeAdapter(dict[str, Any])


@pytest.fixture
def search_document(toy_document):
    toy_document["factors"] = {"upstream": {"target": "upstream", "levels": [0, 1], "baseline": 0}}
    toy_document["search"] = {
        "sampler": {"name": "random", "seed": 3},
        "space": {"gain": SHARE},
        "trials": 3,
    }
    return toy_document


def test_search_proposes_equally_and_replicates_the_best(search_document):
    bench = Bench(search_document).run_all()
    searched = [event for event in bench.events if isinstance(event, CellSearched)]
    assert [event.cell.label for event in searched] == ["baseline", "upstream=1"]
    kinds = [(event.trial.cell.label, event.trial.kind) for event in bench.ended()]
    for label in ("baseline", "upstream=1"):
        assert kinds.count((label, "search")) == 3
        assert kinds.count((label, "replicate")) == 2
    for event in searched:
        gains = [
            e.trial.params["gain"]
            for e in bench.ended()
            if e.trial.kind == "search" and e.trial.cell == event.cell
        ]
        assert event.params == {"gain": max(gains)}
    seeds = {
        kind: {e.trial.seed for e in bench.ended() if e.trial.kind == kind}
        for kind in ("search", "replicate")
    }
    assert not seeds["search"] & seeds["replicate"], "the selected model is not tested"


def test_an_interrupted_search_makes_the_same_proposals(search_document, tmp_path):
    start = [{"gain": 0.5}, {"gain": 0.25}]
    search_document["search"] |= {"sampler": {"name": "tpe", "seed": 5}, "start": start}
    whole = Bench(search_document).run_all()
    search_document["storage"] = {"path": str(tmp_path / "second")}
    cut = Bench(search_document)
    for _ in range(2):
        trial = cut.take()
        cut.run(trial)
    assert cut.take() is not None, "this one is lost with its driver"
    resumed = Bench(search_document).run_all()

    def proposals(bench):
        ended = [event.trial for event in bench.ended() if event.trial.kind == "search"]
        return {(trial.cell.label, trial.number, trial.params["gain"]) for trial in ended}

    assert proposals(resumed) == proposals(whole)
    assert {("baseline", 0, 0.5), ("baseline", 1, 0.25), ("upstream=1", 1, 0.25)} <= proposals(whole)


def test_what_one_search_stopped_another_finishes_and_neither_winner_changes(
    search_document,
):
    """Two searches that differ in when they stop propose the same trials."""
    search_document["factors"] = {}
    search_document["search"]["sampler"]["seed"] = 1  # its first proposal is the best
    benches = []
    for grace_steps in (1, 2):
        search_document["search"]["trial_scheduler"] = {"name": "asha", "grace_steps": grace_steps}
        benches.append(Bench(search_document))
    hasty, patient = benches
    (cell,) = cells(hasty.study)
    best = patient.start()  # and nothing more, as if its driver died
    while not hasty.queue.is_done:
        trial = hasty.start()
        record = hasty.run_only(trial)
        if trial.fingerprint == best.fingerprint:
            record = replace(record, state="stopped", reason="stopped at step 1")
            hasty.store.records.write("trials", record.fingerprint, record.to_json())
        hasty.queue.end(trial, record)
    winner = chosen_params(hasty.study, cell, hasty.store)
    assert winner not in (None, best.params)
    Bench(search_document).run_all()
    assert chosen_params(patient.study, cell, patient.store) == best.params
    assert chosen_params(hasty.study, cell, hasty.store) == winner


@pytest.mark.parametrize("content", [None, "", '{"number": 0,', "{}", "[]"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_lost_or_damaged_proposal_is_made_again(search_document, tmp_path, number, content):
    search_document["factors"] = {}
    whole = Bench(search_document).run_all()
    [path] = tmp_path.glob(f"store/records/proposals/*/0000{number}.json")
    path.unlink() if content is None else path.write_text(content)
    again = Bench(search_document)
    for _ in range(10):
        if again.queue.is_done:
            break
        trial = again.take()
        again.run(trial)
    assert again.queue.is_done

    def outcome(bench):
        return {event.trial.name: event.record.metrics["dev/score"] for event in bench.ended()}

    assert outcome(again) == outcome(whole)


def test_a_killed_proposal_stays_open_and_runs_again(search_document, tmp_path):
    """A search runs no failed trial again, so one whose driver or store is gone must not count as failed."""
    search_document["search"]["sampler"] = {"name": "tpe", "seed": 5}
    whole = Bench(search_document).run_all()
    search_document["storage"] = {"path": str(tmp_path / "second")}
    cut = Bench(search_document)
    trial = cut.take()
    cut.queue.kill(trial, "disk full at /store")
    assert cut.queue.is_done
    assert cut.queue.stop_reason == "disk full at /store"
    assert (cut.queue.num_run, cut.queue.num_failed) == (0, 0)
    counts = read_status(cut.study, cut.store)["counts"]
    assert (counts["finished"], counts["failed"]) == (0, 0)
    resumed = Bench(search_document).run_all()
    params = [
        {(e.trial.kind, e.trial.cell.label, e.trial.number, str(e.trial.params)) for e in bench.ended()}
        for bench in (whole, resumed)
    ]
    assert params[0] == params[1]
    assert {event.record.state for event in resumed.ended()} == {"finished"}


def test_a_driver_that_lost_its_lock_changes_nothing_any_more(search_document):
    is_lost = []

    def poll():
        if is_lost:
            raise StudyLockedError("taken over")

    bench = Bench(search_document, poll=poll)
    ran, running = bench.start(), bench.start()
    record = bench.run(ran)
    before = [bench.store.records.list(kind, ANY) for kind in ("trials", "proposals")]
    is_lost.append(True)
    for change in (
        bench.take,
        lambda: bench.queue.end(running, record),
        lambda: bench.queue.kill(running, "SIGTERM"),
        lambda: bench.queue.lost(running, "gone"),
        lambda: bench.queue.intermediate(running, 1.0, 1),
    ):
        with pytest.raises(StudyLockedError):
            change()
    assert [bench.store.records.list(kind, ANY) for kind in ("trials", "proposals")] == before
