"""The table of `nlgraft status`."""

import pytest

from nlgraft.commands.terminal import status_table


def document(waiting=0, is_running=False, reasons=(), workers=(1, 1), preemptions=0):
    counts = {"planned": 3, "waiting": waiting, "running": 0, "finished": 1, "stopped": 0, "failed": 2}
    cell = {"cell": {"arm": "a"}, "label": "arm=a", "counts": counts, "reasons": list(reasons)}
    status = {"study": "demo", "is_running": is_running, "counts": counts, "cells": [cell]}
    return status | {"workers": list(workers), "preemptions": preemptions, "running": [], "hours": {}}


def test_it_says_why_trials_failed_each_reason_once(capsys):
    status_table(document(reasons=["training: loss is nan", "training: loss is nan", "scores: no text"]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "demo"
    assert lines[-2:] == ["arm=a: training: loss is nan", "arm=a: scores: no text"]


def test_many_reasons_are_counted(capsys):
    status_table(document(reasons=[f"reason {number}" for number in range(20)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["arm=a: reason 7", "and 12 other reasons: see the report"]


@pytest.mark.parametrize(
    ("is_running", "last"),
    [(True, "a driver runs this study"), (False, "no driver runs this study: nlgraft run continues it")],
)
def test_it_says_whether_anything_runs(capsys, is_running, last):
    status_table(document(waiting=2, is_running=is_running))
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_it_shows_the_range_of_workers_and_what_it_cost_to_lose_nodes(capsys):
    status_table(document(workers=(1, 4), preemptions=1))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["each trial has 1 to 4 workers", "1 node lost under its trials, which went on"]
