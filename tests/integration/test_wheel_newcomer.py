"""A newcomer without a checkout: the wheel in an empty environment, and what each step names as the next.

Dependencies are those of the test environment, by a path; of nlgraft there is the wheel's code alone.
That it requires what it imports is tested with the rest of its metadata in tests/contract/test_release.py.
"""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from nlgraft.basics.shipped import system_names
from tests.newcomer_text import newcomer_text, write_lines
from tests.wheels import ROOT, build_wheel

NUM_LINES = 300
TAKES = {
    name.rpartition(".")[2]: re.findall(r"[a-z]+", template.read_text("utf-8").partition("\n")[0])[1:]
    for name in system_names()
    if (template := ROOT / name.replace(".", "/") / "init.yaml.j2").exists()
}
"""The text that each system takes, by the first line of its template."""

GOES_ON = """
from transformers import AutoModelForCausalLM, AutoTokenizer
start = AutoTokenizer.from_pretrained("winner")("a", return_tensors="pt")
written = AutoModelForCausalLM.from_pretrained("winner").generate(**start, max_new_tokens=5)
print(written.shape[1] - start["input_ids"].shape[1])
""".splitlines()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment into which the wheel alone was installed."""
    home = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    python = home / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(
        subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    )
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, build_wheel(home)], check=True)
    # The path is read after the packages of the environment, and development installs in it are not.
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return home / "venv" / "bin"


class Newcomer:
    """Someone with text in a folder, who types what is printed."""

    def __init__(self, folder, environment):
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.environment = {**kept, "PATH": f"{environment}:/usr/bin:/bin", "HOME": str(folder)}

    def types(self, line, stdin=""):
        done = subprocess.run(
            shlex.split(line),
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr


def write_text(newcomer, takes):
    """Write the text that a system takes; return the options that name it, and its sources line by line."""
    if "sources" in takes:
        named = ["source text.en", "source text.fr", "target text.de"]
    elif "label" in takes:
        named = ["source lines.txt", "label lines.label"]
    else:
        named = ["source text.en", *["target text.de"] * ("target" in takes)]
    text, sources = newcomer_text(NUM_LINES), []
    for role, name in map(str.split, named):
        write_lines(newcomer.folder / name, text[name])
        sources += [text[name]] * (role == "source")
    return [f"--{part}" for part in named], [list(row) for row in zip(*sources, strict=True)]


@pytest.mark.parametrize("system", TAKES)
def test_from_text_to_the_winner_by_what_is_printed(system, environment, tmp_path):
    newcomer = Newcomer(tmp_path, environment)
    options, rows = write_text(newcomer, TAKES[system])
    where, _ = newcomer.types('python -c "import nlgraft; print(nlgraft.__file__)"')
    assert Path(where.strip()).is_relative_to(environment.parent)
    listed, _ = newcomer.types("nlgraft systems")
    assert system in listed
    shown, _ = newcomer.types(f"nlgraft init {system} {' '.join(options)}")
    commands = [line.partition("  ")[0] for line in shown.splitlines() if line.startswith("nlgraft ")]
    small = [line for line in commands if not re.search("@|practice", line)]
    assert [line.split()[1] for line in small] == ["plan", "run", "report", "export"]
    printed = {line.split()[1]: newcomer.types(line) for line in small}
    assert "arm=" in printed["run"][0]
    assert (tmp_path / "report" / "report.html").is_file()
    prediction_commands = re.findall(r"next: (nlgraft .*) < text", printed["export"][1])
    if prediction_commands:
        columns = re.findall(r"< text, with columns by tabs: (.*)", printed["export"][1])
        width = len(columns[0].split(", ")) if columns else 1  # the best arm may read one source of several
        stdin = "".join("\t".join(row[:width]) + "\n" for row in rows[:20])
        answers, _ = newcomer.types(prediction_commands[0], stdin)
        assert len(answers.splitlines()) == 20
    else:  # a causal language model, which transformers opens
        assert re.search(r"^transformers: \w+ForCausalLM loads this directory", printed["export"][1], re.M)
        write_lines(tmp_path / "goes_on.py", GOES_ON)
        shown, _ = newcomer.types("python goes_on.py")
        assert int(shown) > 0
