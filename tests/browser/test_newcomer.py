"""A newcomer: a fresh clone, own text the commands of the pages, the report in a browser."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.newcomer_text import write_domains
from tests.pages import CHROMIUM, browse
from tests.processes import python

ROOT = Path(__file__).parents[2]
OVERRIDES = ["@tiny", "seeds=[1, 2]"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git repository to clone"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install chromium or google-chrome"),
]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    home = tmp_path_factory.mktemp("newcomer")
    subprocess.run(["git", "clone", "--quiet", "--local", ROOT, home / "nlgraft"], check=True)
    return Newcomer(home)


class Newcomer:
    """Someone with a clone, an environment, and text in a folder of their own."""

    def __init__(self, home):
        self.clone = home / "nlgraft"
        self.project = home / "my project"
        (self.project / "text").mkdir(parents=True)
        page = (self.clone / "docs" / "commands.md").read_text("utf-8")
        [study] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        names = write_domains(self.project / "text", study, train=400, dev=20, test=20)
        # their text lies in a folder beside the study
        for name in names:
            study = re.sub(rf"(?<![\w/-]){re.escape(name)}(?![\w.])", f"text/{name}", study)
        (self.project / "law.yaml").write_text(study, "utf-8")

    def types(self, *command):
        """Run a command of the documentation in the project's folder, with the clone's code."""
        environment = {**os.environ, "PYTHONPATH": f"{self.clone / 'platform'}{os.pathsep}{self.clone}"}
        kind = () if command[0] == "-c" else ("-m",)
        return python(*kind, *command, cwd=self.project, env=environment)


def commands_of_docs():
    """Every command of the pages in docs/ that names a study."""
    texts = [path.read_text("utf-8") for path in sorted(ROOT.glob("docs/*.md"))]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("nlgraft ")]
    return [
        shlex.split(line, comments=True) for line in lines if "STUDY.yaml" in line and "--address" not in line
    ]


def test_plan_run_report_and_the_report_in_a_browser(newcomer):
    plan = newcomer.types("nlgraft", "plan", "law.yaml", *OVERRIDES)
    assert re.search(r"^cells +3$", plan.stdout, re.M)
    assert re.search(r"^worker time, rough estimate +\d", plan.stdout, re.M)
    assert re.search(r"^upstream_corpus +train +400 ", plan.stdout, re.M)
    ran = newcomer.types("nlgraft", "run", "law.yaml", *OVERRIDES)
    assert ran.stderr.splitlines()[0] == "checking the data"
    assert len(re.findall(r"^finished  .*: dev/bleu [\d.]+ ", ran.stderr, re.M)) == 6
    assert "test/bleu" not in ran.stderr
    assert re.search(r"^arm=patt_eg .* \[.*, .*\]", ran.stdout, re.M)
    shown = newcomer.types("nlgraft", "report", "law.yaml", *OVERRIDES)
    assert "| arm=patt_eg |" in shown.stdout
    newcomer.types("nlgraft", "report", "law.yaml", "--format", "html", "--out", "report", *OVERRIDES)
    picture = newcomer.project / "report.png"
    page = (newcomer.project / "report" / "report.html").as_uri()
    document = browse(
        page, newcomer.project / "profile", f"--screenshot={picture}", "--window-size=1280,1600"
    )
    rows = re.findall(r"<tr>\s*<td class=\"text[^>]*>(arm=[^<]*)</td>", document.replace("<wbr>", ""))
    assert {"arm=avg_eg", "arm=patt_eg"} <= set(rows)
    assert "<svg" in document
    assert not re.search(r"(?:src|href)=\"https?://", document), "the page needs no network"
    for command in commands_of_docs():
        newcomer.types(*(part.replace("STUDY.yaml", "law.yaml") for part in command), *OVERRIDES)
    again = newcomer.types("nlgraft", "run", "law.yaml", *OVERRIDES)
    assert "trials: 0 run, 6 reused, 0 failed" in again.stdout


def test_the_same_from_python(newcomer):
    """The Python of docs/commands.md on the study that the command line has run."""
    page = (newcomer.clone / "docs" / "commands.md").read_text("utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code, changed = re.subn(r"from_yaml\(.*\)", f"from_yaml('law.yaml', overrides={OVERRIDES!r})", code)
    assert changed == 1
    shown = newcomer.types("-c", code).stdout
    assert "Plan of my-vocabulary" in shown
    assert "test/bleu" in shown
    assert {path.name for path in (newcomer.project / "report").iterdir()} >= {"report.html", "report.tex"}
