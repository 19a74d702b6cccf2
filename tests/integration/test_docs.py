"""The pages of docs/ that a user follows: every command in its order, every YAML and Python block."""

import os
import re
import shlex
from pathlib import Path

import click
import pytest

from nlgraft import Study, api
from nlgraft import __all__ as public_names
from nlgraft.basics.shipped import system_names
from nlgraft.commands.main import main
from nlgraft.study.data.design import cells
from nlgraft.study.reading.documents import parse
from tests.commands import nlgraft
from tests.newcomer_text import newcomer_text, write_lines
from tests.processes import python
from tests.small_studies import SMALL_DEMO

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"}
SYSTEMS = [f"systems/{name.rpartition('.')[2]}" for name in system_names()]
PAGES = ["index", "own_text", "own_scores", "designs", "search", "cluster", "mlflow", "faq", "api", *SYSTEMS]
NEEDS_A_RUN = {
    *("run", "try", "path", "agreement", "report", "ledger", "export", "translate", "classify", "pack"),
    *("check", "ls", "gc"),
}
"""Commands that train, or need what was trained."""
NUM_LINES = 160
ELSEWHERE = {"cluster", "mlflow", "own_scores"}
"""Pages whose commands need a cluster, a server or a tool's files: only their options are looked up."""


def text_of(page):
    """The page itself, without files that it puts in."""
    return (DOCS / f"{page}.md").read_text("utf-8")


def blocks(page, kind):
    return [
        block
        for language, block in re.findall(r"```(\w*)\n(.*?)```", text_of(page), re.S)
        if language == kind
    ]


def commands(page):
    lines = [line.partition(" #")[0].strip() for block in blocks(page, "") for line in block.splitlines()]
    return [line for line in lines if re.match(r"(paste .* \| )?nlgraft ", line)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with every text that the pages name."""
    monkeypatch.chdir(tmp_path)
    files = newcomer_text(NUM_LINES)
    english, german = files["text.en"], files["text.de"]
    for name, lines in (("en", english), ("de", german)):
        files[f"dev.{name}"] = files[f"test.{name}"] = lines[:20]
    files |= dict.fromkeys(("a1.txt", "a2.txt", "b1.txt", "b2.txt"), german[::-1]) | {"ref.txt": german}
    pairs = zip(english, german, strict=True)
    files["pairs.csv"] = ["english,german", *(f'"{source}","{target}"' for source, target in pairs)]
    for name, lines in files.items():
        write_lines(Path(name), lines)
    return tmp_path


def type_in(line):
    """Run a command as a shell would, with its input from a file or from `paste`; return what it prints."""
    line, _, input_file = line.partition(" < ")
    pasted = re.match(r"paste (\S+) (\S+) \| (.*)", line)
    lines = ""
    if pasted:
        columns = [Path(name).read_text("utf-8").splitlines() for name in pasted.group(1, 2)]
        lines = "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))
        line = pasted[3]
    arguments = shlex.split(line)[1:]
    small = SMALL_DEMO if "demo" in arguments else []
    done = nlgraft(*arguments, *small, text=Path(input_file).read_text() if input_file else lines)
    if arguments[0] == "init":  # two seeds are enough to see that it runs
        path = Path(
            arguments[arguments.index("--out") + 1] if "--out" in arguments else f"{arguments[1]}.yaml"
        )
        path.write_text(path.read_text("utf-8").replace("seeds: [1, 2, 3]", "seeds: [1, 2]"), "utf-8")
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_of_a_page_exists(page):
    command_lines = commands(page) + [
        f"nlgraft {name}" for name in re.findall(r"`nlgraft (\w+)", text_of(page))
    ]
    for line in command_lines:
        arguments = shlex.split(line.rpartition("nlgraft ")[2].partition(" <")[0])
        command = main
        while isinstance(command, click.Group) and arguments:
            name = arguments.pop(0)
            assert name in command.commands, line
            command = command.commands[name]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= options, line
        if line in commands(page):  # with values that the options take
            command.make_context(command.name, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_what_trains_nothing_runs_as_printed_and_every_study_is_planned(page, place):
    run = [] if page in ELSEWHERE else commands(page)
    for line in run:
        if shlex.split(line.rpartition("nlgraft ")[2])[0] not in NEEDS_A_RUN:
            type_in(line)
    written = sorted(place.glob("*.yaml"))
    base = parse(written[0].read_text("utf-8")).values if written else {}
    for block in blocks(page, "yaml"):
        part = parse(block).values
        if "factors" in part:  # the page says so
            kept = {key: value for key, value in base.items() if key not in ("claims", "analysis")}
        else:
            kept = base
        study = Study.from_dict(part if "schema_version" in part else {**kept, **part})
        assert len(cells(study)) >= 1
        assert api.plan(study).problems == [], block


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("page", sorted({*PAGES} - ELSEWHERE))
def test_all_commands_of_a_page_run_in_their_order(page, place):
    if page == "api":
        type_in("nlgraft init prlm_fusion --source text.en --target text.de")
    for line in commands(page):
        if "nlgraft agreement" in line:  # of studies that stand for several, each run whole
            continue
        shown = type_in(line)
        if " < " in line or "paste" in line:
            assert len(shown.splitlines()) == NUM_LINES
    for block in blocks(page, "python"):
        done = python("-c", block, env=ENVIRONMENT)
        assert "test/bleu" in done.stdout
        assert (place / "report" / "report.html").is_file()


def test_the_python_page_names_everything_that_is_public():
    shown = re.findall(r"^::: (\S+)$", text_of("api"), re.M)
    assert {name.rpartition(".")[2] for name in shown} >= {*public_names}


def test_there_is_a_page_for_every_system_with_its_readme_and_metrics():
    for page in SYSTEMS:
        name = page.partition("/")[2]
        assert f"<!-- file: trainables/{name}/README.md -->" in text_of(page)
        assert f"<!-- metrics: {name} -->" in text_of("metrics")
