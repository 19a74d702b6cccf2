"""The end of a run as a person reads it, in a wide and in a narrow terminal."""

import re
import sys

import pytest
from rich.console import Console

from nlgraft.analysis.data.results import Invocation
from nlgraft.commands import terminal


@pytest.fixture
def show(monkeypatch, capsys):
    """Print a result in a terminal of a width; returns its lines."""

    def print_lines(result, width, print_result=terminal.show_result):
        console = Console(file=sys.stdout, highlight=False, width=width)
        monkeypatch.setattr(terminal, "_console", lambda: console)
        print_result(result)
        return capsys.readouterr().out.splitlines()

    return print_lines


@pytest.mark.parametrize("width", [160, 120, 80])
def test_no_number_breaks_at_any_width(show, result, width):
    lines = show(result, width)
    intervals = [
        interval for line in lines for interval in re.findall(r"\[[−+]\d+\.\d+, [−+]\d+\.\d+\]", line)
    ]
    assert len(intervals) == 4
    assert sum(line.count("[") for line in lines) == 4
    assert sum(len(re.findall(r"\d ± \d", line)) for line in lines) >= 10
    assert max(map(len, lines)) <= width
    for label in ("baseline (arm=random_init)", "arm=patt_eg"):
        assert any(line.startswith(label) for line in lines)


def test_a_report_is_laid_out_with_whole_numbers(show, result):
    lines = show(result, 80, lambda result: terminal.show_report(result.render("md")))
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.startswith(("|", "#", "- "))]
    rows = [line for line in lines if re.match(r"arm=\w+ +3 .*\[[−+]\d+\.\d+, [−+]\d+\.\d+\]$", line)]
    assert len(rows) >= 8, "two metrics, four arms"


def test_marks_are_explained_below_the_table_and_test_metrics_shown(show, make_small_study, run, store):
    result = run(make_small_study(seeds=[1]), store)
    result.invocation = Invocation(2, 0, 0, "reports", "sqlite:///mlflow.db", "made-up-table2")
    lines = show(result, 80)
    text = "\n".join(lines)
    assert "†" in text
    assert "† one seed: the interval and p cover test-set sampling only" in " ".join(text.split())
    assert "test/accuracy" in text
    assert "sentences_per_s" not in text
    assert "mlflow ui --backend-store-uri sqlite:///mlflow.db" in text


def test_a_terminal_of_80_columns_without_colours_gets_neither_more_nor_colours(monkeypatch, capsys, result):
    for name, value in {"NO_COLOR": "1", "FORCE_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    terminal.show_result(result)
    terminal.status_table(
        {
            "study": "x",
            "cells": [{"label": "baseline", "counts": {"finished": 1, "waiting": 0}, "reasons": ["a" * 100]}],
            "counts": {"finished": 1, "waiting": 0},
            "is_running": True,
            "workers": [1, 1],
            "preemptions": 0,
            "running": [],
            "hours": {},
        }
    )
    text = capsys.readouterr().out
    assert "\x1b[1m" in text  # a terminal: titles are bold
    assert not re.search(r"\x1b\[[0-9;]*[34]\dm", text)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    places = ("report:", "MLflow:")  # paths and commands to copy
    assert max(len(line) for line in plain if not line.startswith(places)) <= 80
