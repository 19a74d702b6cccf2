"""Command-line arguments that reach the API."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import nlgraft
from nlgraft import api
from nlgraft.basics.errors import NlgraftError, StudyError
from nlgraft.basics.wording import visible
from nlgraft.commands.main import main
from nlgraft.study.public import Study
from tests.commands import nlgraft as invoke

STUDY = "examples/minimal_system/study.yaml"


@pytest.mark.parametrize(
    ("arguments", "cell"),
    [([], "baseline"), (["--cell", "both"], "both"), (["--cell", "a=1", "--cell", "b=2"], "a=1, b=2")],
)
def test_a_trial_takes_a_level_of_every_factor(monkeypatch, arguments, cell):
    cells = []

    def record(study, cell, seed, reporter):
        cells.append(cell)
        return SimpleNamespace(metrics={}, state="finished", reason="")

    monkeypatch.setattr(api, "run_one", record)
    invoke("trial", STUDY, *arguments)
    assert cells == [cell]


def test_help_and_docs_list_every_command_in_the_same_sections():
    text = invoke("--help").stdout.partition("Begin a study:")[2]
    assert sorted(re.findall(r"^  ([\w-]+)  ", text, re.MULTILINE)) == sorted(main.commands)
    titles = ["Begin a study", *re.findall(r"^(\w.*):$", text, re.MULTILINE)]
    page = Path("docs/commands.md").read_text()
    assert titles == [title for title in re.findall(r"^#+ (.*)$", page, re.MULTILINE) if title in titles]
    assert [name for name in main.commands if not re.search(f"(nlgraft |`){name}\\b", page)] == []


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_generator_takes_is_bad_input(seed):
    assert "0<=x<=4294967295" in invoke("trial", STUDY, "--seed", seed, code=2).output


@pytest.mark.parametrize("command", ["status", "report", "trial", "run"])
@pytest.mark.parametrize("place", ["/proc", "/proc/store", "loop", "loop/store"])
def test_a_place_that_can_be_no_store_is_bad_input(tmp_path, monkeypatch, command, place):
    (tmp_path / "loop").symlink_to(tmp_path / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "loop")
    storage = str(tmp_path / place)  # an absolute place stays as it is
    assert f"storage {storage}: " in invoke(command, STUDY, "--storage", storage, code=2).output


@pytest.mark.parametrize(
    ("end", "state", "code"),
    [
        (None, "finished", 0),
        (SystemExit(1), "failed", 1),
        (NlgraftError("no"), "failed", 1),
        (SystemExit(143), "interrupted", 143),
    ],
)
@pytest.mark.parametrize("status", [0, 3])
def test_a_command_hears_how_a_run_ended_and_does_not_change_it(
    end,
    state,
    code,
    status,
    tmp_path,
    monkeypatch,
):
    def launch(*arguments, **options):
        if end is not None:
            raise end
        return SimpleNamespace(to_json=lambda: {"cells": []}, invocation=None)

    monkeypatch.setattr(api, "launch", launch)
    command = f'echo "$1 $2" > {tmp_path}/heard; exit {status}'
    done = invoke("run", STUDY, "--json", "--on-end", command, code=code)
    assert (tmp_path / "heard").read_text().split()[0] == state
    assert ("--on-end" in done.stderr) == (status != 0)


@pytest.mark.parametrize("command", [["plan"], ["status"], ["report"], ["watch", "--out"]])
def test_hours_stand_beside_the_limits_of_a_budget(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    page = [str(tmp_path / "page.html")] if "--out" in command else []
    place = ["--storage", str(tmp_path / "store")]
    for limit, is_shown in (("budget.cpu_hours=2", True), ("budget.trials=2", False)):
        done = invoke(*command, *page, STUDY, limit, *place)
        shown = Path(page[0]).read_text() if page else done.stdout
        assert ("of 2 CPU-hours" in shown) == is_shown, shown


def test_a_report_that_cannot_be_written_is_told_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "reports"
    done = invoke("report", STUDY, "--storage", tmp_path / "store", "--out", out, code=2)
    assert f"--out {out}: cannot be written" in done.output


def test_messages_hold_no_character_that_turns_their_text_around():
    assert visible("a\u202eb\x1b[0m\u2028\n\tc é 日") == "a\\u202eb\\u001b[0m\\u2028\n\tc é 日"


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("seeds=3", "write [1, 2, 3]"),
        (
            "train.peak_lr=[1e-3, 2e-3]",
            "give train.peak_lr=0.001,0.002 after the study, or write factors: "
            "{peak_lr: {target: train.peak_lr, levels: [0.001, 0.002], baseline: 0.001}}",
        ),
        ("system=prlm", "Did you mean 'trainables.prlm_fusion'?"),
    ],
)
def test_what_is_written_otherwise_is_refused_with_how_to_write_it(override, advice):
    with pytest.raises(StudyError, match=re.escape(advice)):
        Study.from_yaml(STUDY, [override])


def test_a_study_that_no_store_has_is_told_in_python_s_terms(tmp_path):
    with pytest.raises(StudyError, match=rf"{tmp_path}.*nlgraft\.load\(name, storage="):
        nlgraft.load("nowhere", storage=str(tmp_path))


def test_plan_refuses_a_tracking_store_that_run_would_refuse(tmp_path):
    place = ("--storage", tmp_path, "--tracking-uri", "file:/somewhere")
    assert "file store" in invoke("plan", STUDY, *place, code=2).output


def test_a_printed_plan_has_its_warnings(tmp_path):
    overrides = ["seeds=[1]", f"storage.path={tmp_path}"]
    plan = Study.from_yaml(STUDY, overrides).plan()
    [warning] = [line for line in plan.warnings if line.startswith("seeds: ")]
    assert warning in repr(plan)
