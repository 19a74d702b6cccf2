"""A script as a system: what its study may say, what makes another trial, and how its processes end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from nlgraft.basics.errors import StudyError, TrialFailed
from nlgraft.evaluation.artifact import read_segments
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs.run import read_result
from nlgraft.study.data import paths
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell
from tests.commands import nlgraft, write_study
from tests.processes import patient, wait_until
from tests.unit.stages.runs import run
from trainables.command import guard
from trainables.command.stages import LOG

SCRIPT = """\
import json, sys
values = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
print("called with", *sys.argv[1:])
with open("out.jsonl", "w") as file:
    for step in (1, 2):
        print(json.dumps({"step": step, "dev/loss": float(values["lr"]) / step}), file=file)
with open("items.csv", "w") as file:
    print("item,metric,value", "b,test/item.hit,1", "a,test/item.hit,0", sep="\\n", file=file)
"""
COMMAND = "python run.py {settings} --seed={seed}"
DOCUMENT = {
    "name": "scripts",
    "system": "trainables.command",
    "data": {"directory": "code"},
    "base": {
        "declare": {
            "lr": {"type": "float", "default": 0.5, "min": 0, "max": 1},
            "optimizer": {"type": "text", "default": "adam", "choices": ["adam", "sgd"]},
            "momentum": {"type": "float", "default": 0.9, "min": 0, "max": 1, "when": {"optimizer": ["sgd"]}},
            "name": {"type": "text", "default": None},
        },
        "stages": {
            "train": {
                "command": COMMAND,
                "metrics": ["out.jsonl", "items.csv"],
            }
        },
        "metrics": {
            "dev/loss": {"direction": "minimize", "unit": "nats"},
            "test/item.hit": {"direction": "maximize"},
        },
    },
    "factors": {"lr": {"target": "settings.lr", "levels": [0.5, 0.25], "baseline": 0.5}},
    "objective": {"metric": "dev/loss", "direction": "minimize"},
    "seeds": [1, 2],
}


HEARS_SIGINT = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
"""In a child: a shell that runs the tests in the background has them ignore it."""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "run.py").write_text(SCRIPT)
    return tmp_path / "code"


@pytest.fixture
def store(tmp_path):
    return ArtifactStore.open(tmp_path / "store")


def study_of(code, changes=None):
    document = json.loads(json.dumps(DOCUMENT))
    for path, value in (changes or {}).items():
        paths.put(document, path, value)
    return Study.from_yaml(write_study(code.parent / "study.json", document))


def graph_of(study, cell=0, seed=1):
    return resolve_cell(study, cells(study)[cell]).graph(seed)


def fingerprint(code, changes=None):
    return graph_of(study_of(code, changes)).fingerprint


def log_of(graph, store):
    return (store.fetch(graph.find("train")) / LOG).read_text()


def fails(graph, store, words):
    with pytest.raises(TrialFailed, match=words):
        run(store, graph)


def with_script(code, script, **train):
    (code / "run.sh").write_text(script)
    declare = {"lr": {"type": "float", "default": 0.5}}
    command = {"base.stages.train.command": "sh run.sh {lr} {seed}", "base.declare": declare}
    return study_of(code, command | {f"base.{name}": value for name, value in train.items()})


# --- what a study may say ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"data.directory": "cod"}, "data.directory", "Did you mean 'code'. Give a readable directory"),
        ({"base.settings": {"lrr": 1}}, "base.settings.lrr", "unknown key.*Did you mean 'lr'"),
        ({"base.settings": {"momentum": 2}}, "base.settings.momentum", "float >= 0, <= 1.*got 2"),
        ({"base.settings": {"optimizer": "adm"}}, "base.settings.optimizer", "Did you mean 'adam'"),
        ({"factors.lr.target": "settings.rl"}, "factors.lr.target", "no 'settings.rl'. Did you mean"),
        ({"factors.lr.levels": [0.5, 3]}, r"factors.lr.levels\[1\]", "got 3"),
        (
            {"search": {"trials": 2, "space": {"settings.momentum": {"type": "float", "low": 0, "high": 2}}}},
            "search.space.settings.momentum.high",
            "got 2",
        ),
        ({"base.declare.name.min": 1, "base.declare.name.default": "a"}, "base.declare.name", "min and max"),
        ({"base.declare.seed": {"type": "int", "default": 1}}, "base.declare.seed", "the name is taken"),
        ({"base.stages.train.command": "run 'x={settings} {seed}'"}, "base.stages.train", "word 'x={sett"),
        ({"base.stages.train.environment": {"A": "{settings}"}}, "base.stages.train", "environment.A: {sett"),
        ({"base.stages.train.command": "run {name}{seed} {settings}"}, "base.stages.train", "{seed} is left"),
        (
            {"base.stages.train.command": "run lr={lr},m={momentum} {settings} {seed}"},
            "base.stages.train",
            "{lr} is left out with momentum",
        ),
        ({"base.stages.train.command": "run {lrr} {settings}"}, "base", "no command of stages has {seed}"),
        ({"base.stages.train.command": "python rum.py {settings} {seed}"}, "base.stages.train", "run.py"),
        ({"base.stages.train.command": "run {lr} {seed}"}, "base", "no command of stages reads momentum"),
        ({"base.stages.train.command": "run '{settings} {seed}"}, "base.stages.train", "No closing"),
        ({"base.stages.other": {"command": "true {seed}"}}, "base", "stages.other writes no metrics"),
        ({"base.stages.train.limit": "soon"}, "base.stages.train.limit", "not a duration"),
        ({"objective.metric": "test/item.hit"}, "objective.metric", "test set"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place_and_what_is_allowed(code, changes, place, words):
    with pytest.raises(StudyError, match=rf"(?s)\n  {place}.*: .*{words}"):
        study_of(code, changes)


def test_mistakes_of_all_kinds_are_told_at_once_each_with_its_line(code):
    changes = {
        "data.directory": "cods",
        "data.files": {"text": "text.txt"},
        "base.declare.lr.default": "high",
        "base.declare.momentum.type": "number",
        "base.declare.momentum.when": {"optimiser": ["sgd"]},
        "base.stages.train.command": "run {lrr} {sed}",
        "base.stages.train.metrics": ["out.txt"],
        "base.stages.train.needs": ["prepare"],
        "base.metrics.dev/loss.direction": "minimise",
        "objective.metric": "dev/los",
    }
    with pytest.raises(StudyError) as raised:
        study_of(code, changes)
    problems = [(problem.path.partition("[")[0], problem.message) for problem in raised.value.problems]
    places = {path for path, _ in problems}
    renamed = {
        "data.files": "data.files.text",
        "base.declare.lr.default": "base.declare.lr",
        "base.stages.train.command": "base.stages.train",
    }
    assert places == {renamed.get(path, path) for path in changes}
    # Nothing else follows from a misspelt name: it may have meant the seed, or settings.
    assert len(problems) == len(changes) + 1, "two names of the command stand for nothing"
    assert all(re.search(r"\(line \d+\)$", message) for _, message in problems)


def test_a_link_that_leads_nowhere_is_told_once(code):
    (code / "weights").symlink_to("gone")
    with pytest.raises(StudyError, match=r"1 problem\n.*weights: a link to gone"):
        study_of(code)


def test_settings_are_known_as_those_of_other_systems_are(code):
    study = study_of(code, {"base.settings": {"optimizer": "sgd"}})
    resolved = resolve_cell(study, cells(study)[1])
    assert resolved.document["settings"] == {"lr": 0.25, "optimizer": "sgd", "momentum": 0.9, "name": None}
    assert [resolved.system.metrics[name].unit for name in ("dev/loss", "test/item.hit")] == ["nats", "hit"]
    assert "dev/loss.auc" in resolved.system.metrics
    with pytest.raises(StudyError, match=r"settings.momentum has no effect unless"):
        study_of(code, {"factors.m": {"target": "settings.momentum", "levels": [0.9, 0.5], "baseline": 0.9}})


def test_a_program_that_this_machine_lacks_is_told_before_anything_runs(code):
    study_of(code, {"base.stages.train.command": "pyhton run.py {settings} {seed}"})
    assert "no program 'pyhton'" in nlgraft("validate", code.parent / "study.json").stderr


def test_scripts_are_registered_anew_by_other_files(code, store):
    study = study_of(code, {"factors.lr.levels": [0.5, 0.25, 0.1]})
    for cell in (1, 2):
        run(store, graph_of(study, cell))
    compared = read_result(study, store).compare("lr=0.1", "lr=0.25", metric="test/item.hit")
    assert "nlgraft register scripts data.directory=..." in str(compared)


# --- what makes another trial -----------------------------------------------------------------------------


def test_editing_the_script_makes_another_trial_and_what_nobody_wrote_does_not(code):
    before = fingerprint(code)
    for name in (".git/config", "__pycache__/run.pyc", ".cache", "nlgraft_store/a.json"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text("other")
    (code / "study.yaml").write_text("name: scripts\nsystem: trainables.command\n")
    assert fingerprint(code) == before
    (code / "run.py").write_text(SCRIPT + "# edited\n")
    edited = fingerprint(code)
    assert edited != before
    (code / "notes.txt").write_text("new")
    assert fingerprint(code) != edited
    narrow = {"base.stages.train.code": ["run.*"]}
    limited = narrow | {"base.stages.train.limit": "5m"}
    assert fingerprint(code, narrow) == fingerprint(code, limited)


def test_a_file_of_data_counts_by_its_content_and_only_where_it_is_named(code):
    (code.parent / "text").mkdir()
    (code.parent / "text" / "a.txt").write_text("one")
    changes = {"data.files": {"text": "text"}}
    named = changes | {"base.stages.train.command": f"{COMMAND} --text={{data.text}}"}
    before = [fingerprint(code, each) for each in (changes, named)]
    (code.parent / "text" / "a.txt").write_text("two")
    after = [fingerprint(code, each) for each in (changes, named)]
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def test_a_needed_stage_runs_once_for_all_cells_and_seeds_that_agree_in_what_it_reads(code, store):
    runs = code.parent / "runs"
    prepare = {"command": f"sh -c 'echo prepared >> {runs}; mkdir d; echo 1 > d/x.pt'", "keep": ["d/*"]}
    train = {
        "command": f"{COMMAND} --from={{needs.prepare}}/d/x.pt",
        "needs": ["prepare"],
        "metrics": ["out.jsonl", "items.csv"],
    }
    # Stages are in whatever order, also that of their names.
    study = study_of(code, {"base.stages": {"prepare": prepare, "fit": train}})
    graphs = [graph_of(study, cell, seed) for cell in (0, 1) for seed in (1, 2)]
    assert len({graph.fingerprint for graph in graphs}) == 4
    for graph in graphs:
        run(store, graph)
    assert runs.read_text().splitlines() == ["prepared"]


# --- what a trial computes --------------------------------------------------------------------------------


def test_metrics_curves_items_and_log_are_kept(code, store):
    graph = graph_of(study_of(code, {"base.settings": {"optimizer": "sgd"}}), 1, seed=7)
    record = run(store, graph)
    assert record.metrics.pop("command_s") > 0
    assert record.metrics == {"dev/loss": 0.125, "test/item.hit": 0.5}
    assert [point[:2] for point in record.curves["dev/loss"]] == [[1, 0.25], [2, 0.125]]
    assert record.signatures["test/item.hit"].startswith("items:2|")
    rows = read_segments(store.fetch(graph.result), "test")["item.hit"]
    assert rows.tolist() == [[0, 1], [1, 1]]  # by the name of the item, whatever the order in the file
    log = log_of(graph, store)
    assert log == "called with --lr=0.25 --momentum=0.9 --optimizer=sgd --seed=7\n"
    assert not (code / "out.jsonl").exists()


def test_a_search_trial_has_no_metric_of_the_test_set(code, store):
    study = study_of(code)
    searched = resolve_cell(study, cells(study)[0]).graph(1, ("dev",))
    assert run(store, searched).metrics.keys() == {"dev/loss", "command_s"}
    replicate = graph_of(study)
    assert replicate.find("train") == searched.find("train")
    assert run(store, replicate).metrics.keys() == {"dev/loss", "test/item.hit", "command_s"}
    assert read_result(study, store).num_segments("test/item.hit") == 2, "the ledger counts items"


def test_words_are_filled_in_without_a_shell(code, store):
    (code / "run.py").write_text(SCRIPT + "import os; print(os.environ['WHO'], os.environ.get('NAME'))\n")
    changes = {
        "base.stages.train.command": "python run.py 'x={{$HOME}} {name}' {settings} b={name} y={seed} a={{}}",
        "base.stages.train.environment": {"WHO": "seed {seed}", "NAME": "{name}"},
        "base.declare.name.default": "two words; $(exit)",
    }
    graph = graph_of(study_of(code, {**changes, "factors": {}}))
    run(store, graph)
    called, environment = log_of(graph, store).splitlines()
    name = "two words; $(exit)"
    assert called == f"called with x={{$HOME}} {name} --lr=0.5 --optimizer=adam b={name} y=1 a={{}}"
    assert environment == f"seed 1 {name}"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo working; echo 'lr too high' >&2; exit 3", "ended with status 3; it wrote last: lr too high"),
        ("kill -9 $$", "ended with status 137 .SIGKILL, perhaps for lack of memory.; it wrote nothing"),
        ("exit 0", r"wrote no out.json. There are: run.py, run.sh"),
        ("echo '{' > out.json", "out.json: not JSON.*; write a JSON object, such as"),
        ("echo '[1]' > out.json", r"out.json: \[1\]; write a JSON object"),
        (
            "echo '{\"dev/los\": 1, \"a\": 2}' > out.json",
            "'dev/loss' is in no file. Did you mean 'dev/los'. Read: out.json with dev/los, a$",
        ),
        ("echo '{\"dev/loss\": NaN}' > out.json", "metric dev/loss is nan in out.json"),
        ("echo '{\"dev/loss\": \"low\"}' > out.json", "dev/loss is 'low' in out.json, not a finite number"),
    ],
)  # fmt: skip
def test_a_failure_says_what_is_wrong_and_is_tried_again(code, store, script, words):
    declared = {"dev/loss": {"direction": "minimize"}}
    graph = graph_of(with_script(code, script, **{"stages.train.metrics": ["out.json"], "metrics": declared}))
    for _ in range(2):
        fails(graph, store, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("item,value\\na,1\\n", "items.csv, line 1: no column metric; write item,metric,value"),
        ("item,metric,value\\na,test/item.hit,yes\\n", "items.csv, line 2: 'yes' is not a number"),
        (
            "item,metric,value\\na,test/item.hit,1\\na,test/item.hit,0\\n",
            "line 3: a second value of .* item 'a'",
        ),
        (
            "item,metric,value\\na,hit,1\\n",
            "'test/item.hit' is in no file. Read: out.jsonl with step, dev/loss; items.csv with hit",
        ),
        # What a later look would find is told with the rest.
        (
            "item,metric,value\\na,test/item.hit,yes\\nb,test/item.hit,nan\\n",
            "line 2: 'yes' is not a number; metric test/item.hit is nan in items.csv, line 3",
        ),
        ("item,metric,value\\na,test/item.hit,nan\\n", "metric test/item.hit is nan in items.csv, line 2"),
    ],
)
def test_a_table_of_items_is_checked(code, store, content, words):
    script = f"echo '{{\"step\": 1, \"dev/loss\": 1}}' > out.jsonl; printf '{content}' > items.csv"
    fails(graph_of(with_script(code, script)), store, words)


def test_a_failure_names_every_file_and_no_other_stage(code, store):
    script = "yes no | head -90 > out.jsonl; echo item > items.csv"
    several = (
        r"out.jsonl, line 1: (.*not JSON){3}.* and 87 more; .*; items.csv, line 1: no column metric, value; "
    )
    fails(graph_of(with_script(code, script)), store, f"{several}write item,metric,value$")
    changes = {"base.stages.prepare": {"command": "true", "keep": ["*.pt"]}}
    study = study_of(code, {**changes, "base.stages.train.needs": ["prepare"]})
    fails(graph_of(study), store, r"no file that matches \*.pt of keep. There are: run.py, run.sh$")


def test_a_script_that_changed_after_planning_does_not_run_under_the_old_name(code, store):
    graph = graph_of(study_of(code))
    (code / "run.py").write_text(SCRIPT + "# edited meanwhile\n")
    fails(graph, store, "changed since the study was planned")


# --- how processes end ------------------------------------------------------------------------------------

TREE = """\
echo $$ >> {pids}
setsid sh -c 'echo $$ >> {pids}; trap "" TERM; while :; do sleep 0.1; done' &
sh -c 'echo $$ >> {pids}; while :; do sleep 0.1; done' &
echo '{{"step": 1, "dev/loss": 1}}' > out.jsonl
{end}
"""
"""Three processes: the script, one in a session of its own that ignores SIGTERM, and a child."""


RESUMED = """\
import json, os, signal, sys, time
state = os.path.join(sys.argv[1], "state")
done = int(open(state).read()) if os.path.exists(state) else 0
print("from", done)
time.sleep(2 * (not done))
with open("out.jsonl", "a") as file:
    for step in range(done + 1, 5):
        print(step, file=open(sys.argv[2], "a"))
        if step == 3 and not done:
            os.kill(os.getpid(), signal.SIGKILL)
        with open(state + ".new", "w") as new:
            print(step, file=new)
        os.replace(state + ".new", state)
        print(json.dumps({"step": step, "dev/loss": 1 / step, "checkpoint": True}), file=file, flush=True)
with open("items.csv", "w") as file:
    print("item,metric,value", "a,test/item.hit,0", sep="\\n", file=file)
"""


def test_a_killed_command_goes_on_from_its_checkpoint(code, store):
    steps = code.parent / "steps"
    (code / "run.py").write_text(RESUMED)
    (code / "checkpoint").mkdir()
    (code / "checkpoint" / "state").write_text("a file of the script, which is no state of it")
    command = f"python run.py {{checkpoint}} {steps} {{settings}} {{seed}}"
    study = study_of(code, {"base.stages.train.command": command})
    graph = graph_of(study)
    fails(graph, store, "SIGKILL")
    second_part = time.monotonic()
    record = run(store, graph)
    assert record.metrics["command_s"] > time.monotonic() - second_part, "the first part counts"
    assert log_of(graph, store).splitlines()[0] == "from 0", "its log is kept"
    again = [int(line) for line in steps.read_text().split()]
    assert again[:3] == [1, 2, 3]
    assert again[-1] == 4
    assert 1 not in again[3:], "what the checkpoint has is not computed again"
    assert record.metrics["dev/loss"] == 0.25
    assert [point[0] for point in record.curves["dev/loss"]] == [1, 2, 3, 4], "as if it had not been killed"


SAVES_OFTEN = """\
import json, os, signal, sys, time
parts = [os.path.join(sys.argv[1], name) for name in ("weights", "step")]
done = int(open(parts[1]).read()) if os.path.exists(parts[1]) else 0
print("from", done, len(open(parts[0]).read()) if done else 0)
with open("out.jsonl", "a") as file:
    for step in range(done + 1, 401):
        if step == 300 and not done:
            os.kill(os.getpid(), signal.SIGKILL)
        for part, content in zip(parts, ("x" * (2_000_000 + step), str(step))):
            with open(part + ".new", "w") as new:
                new.write(content)
            os.replace(part + ".new", part)
        print(json.dumps({"step": step, "dev/loss": 1 / step, "checkpoint": True}), file=file, flush=True)
        time.sleep(0.01)
with open("items.csv", "w") as file:
    print("item,metric,value", "a,test/item.hit,0", sep="\\n", file=file)
"""


def test_a_script_that_saves_faster_than_it_can_be_copied_goes_on_from_a_checkpoint(code, store):
    (code / "run.py").write_text(SAVES_OFTEN)
    command = "python run.py {checkpoint} {settings} {seed}"
    graph = graph_of(study_of(code, {"base.stages.train.command": command}))
    fails(graph, store, "SIGKILL")
    assert store.begun() == {graph.find("train").fingerprint}
    assert run(store, graph).metrics["dev/loss"] == 1 / 400
    first, again, *_ = log_of(graph, store).splitlines()
    done, size = map(int, again.split()[1:])
    assert first == "from 0 0"
    assert 100 < done < 300, "the newest of several that were kept"
    assert size - 2_000_000 in (done, done + 1), "whole files of one moment"


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # as it is when only the parent knows of it
    except OSError:
        return False


def pids_in(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_for_end(pids):
    wait_until(lambda: not any(is_alive(pid) for pid in pids_in(pids)))


class StopsOnceThree:
    """Asks to stop when the script has its three processes."""

    def __init__(self, pids):
        self.pids = pids
        self.steps = []

    def report(self, stage, step, metrics):
        self.steps.append(step)

    def should_stop(self):
        return "no better than others" if self.steps and len(pids_in(self.pids)) > 2 else None


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr("trainables.command.stages._PATIENCE_S", 0.5)


def test_a_trial_that_is_stopped_early_ends_all_its_processes(code, store):
    pids = code.parent / "pids"
    study = with_script(code, TREE.format(pids=pids, end="wait"))
    reporter = StopsOnceThree(pids)
    record = run(store, graph_of(study), reporter)
    assert (record.state, record.reason, reporter.steps) == ("stopped", "no better than others", [1])
    assert record.metrics == {"dev/loss": 1.0}
    wait_for_end(pids)


@pytest.mark.parametrize(
    ("end", "limit", "words"),
    [("wait", "2s", "took longer than its limit of 2 s"), ("sleep 1; exit 4", "5m", "ended with status 4")],
)
def test_a_limit_and_an_end_take_all_processes_with_them(code, store, end, limit, words):
    pids = code.parent / "pids"
    study = with_script(code, TREE.format(pids=pids, end=end), **{"stages.train.limit": limit})
    fails(graph_of(study), store, words)
    assert pids_in(pids)
    wait_for_end(pids)


WORKERS = """\
import json, os, sys, time
import torch
import torch.distributed as group
end, pids, rate = sys.argv[1], sys.argv[2], float(sys.argv[3])
group.init_process_group("gloo")
rank, size = group.get_rank(), group.get_world_size()
with open(pids, "a") as file:
    print(os.getpid(), os.getppid(), file=file)
points, weight = torch.arange(4.0), torch.zeros(1)
progress = open(os.devnull if rank else "out.jsonl", "w")
for step in (1, 2):
    gradient = (2 * (weight - points[rank::size])).mean(0, keepdim=True)
    group.all_reduce(gradient)
    weight -= rate * gradient / size
    loss = ((weight - points) ** 2).mean().item()
    print(json.dumps({"step": step, "dev/loss": loss, "processes": size}), file=progress, flush=True)
    if end == "fail" and rank:
        raise ValueError("the second process fails")
    if end == "hang":
        time.sleep(600)
group.destroy_process_group()
"""


def of_two_processes(code, end):
    pids = code.parent / "pids"
    (code / "run.py").write_text(WORKERS)
    command = f"torchrun --standalone --nproc-per-node=2 run.py {end} {pids} {{lr}} {{seed}}"
    train = {"base.stages.train.command": command, "base.stages.train.metrics": ["out.jsonl"]}
    metrics = {name: {"direction": "minimize"} for name in ("dev/loss", "dev/processes")}
    metrics["dev/processes"]["key"] = "processes"
    declare = {"lr": {"type": "float", "default": 0.25}}
    changes = train | {"base.metrics": metrics, "base.declare": declare}
    return graph_of(study_of(code, {**changes, "factors": {}})), pids


def test_torchrun_trains_with_two_processes_in_one_trial(code, store):
    graph, pids = of_two_processes(code, "return")
    record = run(store, graph)
    assert record.metrics["dev/processes"] == 2
    # From 0 towards the mean 1.5 of 0, 1, 2, 3 in two steps that halve the distance; their variance is 1.25.
    curve = [point[:2] for point in record.curves["dev/loss"]]
    assert curve == [[1, 1.25 + 0.75**2], [2, 1.25 + 0.375**2]]
    workers = [int(line.split()[0]) for line in pids.read_text().splitlines()]
    assert len({*workers}) == 2


def test_torchrun_ends_with_both_processes(code, store):
    graph, pids = of_two_processes(code, "fail")
    fails(graph, store, r"status 1; it wrote: .rank1.: ValueError: the second process fails")
    graph, pids = of_two_processes(code, "hang")
    record = run(store, graph, StopsOnceThree(pids))
    assert (record.state, record.metrics["dev/loss"]) == ("stopped", 1.8125)
    wait_for_end(pids)


def test_ctrl_c_ends_the_command_of_a_trial(code):
    pids = code.parent / "pids"
    with_script(code, TREE.format(pids=pids, end="wait"))
    process = subprocess.Popen(
        [sys.executable, "-m", "nlgraft", "trial", "study.json", "--cell", "lr=0.5", "--seed", "1"],
        cwd=code.parent,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=HEARS_SIGINT,
    )
    wait_until(lambda: len(pids_in(pids)) == 3)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=patient(60))
    assert process.returncode != 0
    assert "Traceback" not in shown
    wait_for_end(pids)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_whoever_waits_for_a_command_takes_it_along(tmp_path, signum):
    """A signal that ends the waiting process at once, as an actor of Ray is ended."""
    pids = tmp_path / "pids"
    (tmp_path / "tree.sh").write_text(TREE.format(pids=pids, end="wait"))
    code = (
        "import subprocess, sys\n"
        f"command = [sys.executable, '-I', {guard.__file__!r}, '0.5', 'sh', 'tree.sh']\n"
        "subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True).wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL, preexec_fn=HEARS_SIGINT
    )
    wait_until(lambda: len(pids_in(pids)) == 3)
    os.kill(process.pid, signum)
    process.wait(patient(60))
    wait_for_end(pids)
