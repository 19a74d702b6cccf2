"""The table of `nlgraft status`."""

import pytest

from nlgraft.commands.terminal import status_table


def document(waiting=0, is_running=False, reasons=(), workers=(1, 1), preemptions=0):
    counts = {"planned": 3, "waiting": waiting, "running": 0, "finished": 1, "stopped": 0, "failed": 2}
    cell = {"cell": {"arm": "a"}, "label": "arm=a", "counts": counts, "reasons": list(reasons)}
    status = {"study": "demo", "is_running": is_running, "counts": counts, "cells": [cell]}
    return status | {"workers": list(workers), "preemptions": preemptions, "running": [], "hours": {}}


NAN = "training: loss is nan"
NOBODY = "no driver runs this study: nlgraft run continues it"


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"reasons": [NAN, NAN, "scores: no text"]}, [f"arm=a: {NAN}", "arm=a: scores: no text"]),
        (
            {"reasons": [f"reason {number}" for number in range(20)]},
            ["arm=a: reason 7", "and 12 other reasons: see the report"],
        ),
        ({"waiting": 2, "is_running": True}, ["a driver runs this study"]),
        ({"waiting": 2}, [NOBODY]),
        (
            {"workers": (1, 4), "preemptions": 1},
            ["each trial has 1 to 4 workers", "1 node lost under its trials, which went on"],
        ),
    ],
)
def test_it_ends_with_reasons_each_once_what_runs_and_lost_nodes(capsys, changes, last):
    status_table(document(**changes))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "demo"
    assert lines[-len(last) :] == last
