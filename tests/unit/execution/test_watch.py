"""The page that shows a study while it runs, and the lines in the terminal."""

import re

from nlgraft import api
from nlgraft.commands import terminal
from nlgraft.execution.events import Outlook, TrialEnded, TrialProgress, TrialStarted
from nlgraft.execution.status import RunningRecord
from nlgraft.study.planning.selection import study_key
from tests.commands import nlgraft, write_study
from tests.unit.execution.queue_bench import Bench


def test_a_page_shows_what_runs_and_dev_curves_but_no_test_scores(toy_document, tmp_path, monkeypatch):
    bench = Bench(toy_document)
    clock_s = 0.0
    with bench.store.leases.lock_study(study_key(bench.study), "a driver"):
        running = RunningRecord(bench.study, bench.store, clock=lambda: clock_s)
        first = bench.start()
        running.observe(TrialStarted(first))
        record = bench.run(first)
        clock_s += 60.0
        running.observe(TrialEnded(first, record))
        second = bench.start()
        running.observe(TrialStarted(second))
        running.observe(Outlook(1, {"upstream": 2}, left_s=300.0))
        for step in range(1, 1001):
            clock_s += 60.0
            values = {"dev/score": 41.0, "upstream/dev_loss": 1.0, "train/loss": 2.0}
            running.observe(TrialProgress(second, "training", step, values, 0, num_steps=2000))
        page = tmp_path / "watch.html"
        api.write_live_page(bench.study, page)
        text = page.read_text()
        status = api.status(bench.study)
    assert "1 of 4" in text
    assert "1000 of 2000" in text
    assert second.name in text
    assert "5 min left" in text
    assert re.search(r"2 waiting for upstream", text)
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert captions == ["dev/score", "upstream/dev_loss"], "what has learned, not how a training runs"
    assert 'http-equiv="refresh"' in text
    assert "test/score" in record.metrics
    assert "test/" not in text, "arms could be chosen by it"
    (trial,) = status["running"]
    steps = [step for step, _ in trial["curves"]["dev/score"]]
    assert len(steps) <= 200
    assert (steps[0], steps[-1]) == (1, 1000), "thinned evenly, with both ends"

    pages = []
    terminal.watch_status(
        lambda: api.status(bench.study), lambda document: pages.append(document["is_running"])
    )
    assert pages == [False], "nothing runs any more: one last page, and the end"
    api.write_live_page(bench.study, page)
    assert 'http-equiv="refresh"' not in page.read_text()


def test_a_page_that_cannot_be_written_is_told_in_a_sentence(toy_document, tmp_path):
    bench = Bench(toy_document)
    file = write_study(tmp_path / "toy.yaml", bench.study.to_dict())
    done = nlgraft("watch", file, "--out", tmp_path / "missing" / "page.html", code=2)
    assert "missing" in done.stderr
