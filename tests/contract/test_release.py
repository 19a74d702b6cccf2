"""One version everywhere, and a wheel with complete metadata that works without the repository."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.small_studies import SMALL_DEMO

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = YAML(typ="safe").load(ROOT / "CITATION.cff")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder that holds the wheel's files as a user installs them."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def metadata(wheel):
    (file,) = wheel.glob("*.dist-info/METADATA")
    return email.message_from_string(file.read_text(encoding="utf-8"))


def in_wheel(wheel, *arguments):
    """What Python prints that finds the project in the wheel alone, not by a development install."""
    packages = sysconfig.get_path("purelib")
    environment = {**os.environ, "PYTHONPATH": f"{wheel}{os.pathsep}{packages}"}
    command = [sys.executable, "-S", *arguments]
    run = subprocess.run(
        command, cwd=wheel.parent, env=environment, check=True, capture_output=True, text=True
    )
    return run.stdout


def test_the_newest_release_is_the_version():
    releases = re.findall(
        r"^## \[(\d.*)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )
    assert releases[0] == (PROJECT["version"], CITATION["date-released"])
    assert CITATION["version"] == PROJECT["version"]


def test_the_citation_agrees_with_the_package():
    assert CITATION["authors"] == PROJECT["authors"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["keywords"] == PROJECT["keywords"]


def test_metadata_are_complete(wheel, metadata):
    assert (metadata["Name"], metadata["Version"]) == ("nlgraft", PROJECT["version"])
    assert metadata["Author"] == "The nlgraft developers"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Programming Language :: Python :: 3.11" in metadata.get_all("Classifier")
    assert "ablation study" in metadata["Keywords"].split(",")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# nlgraft\n")
    (licence,) = wheel.glob("*.dist-info/licenses/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_alone_lists_the_systems_with_the_papers_of_its_metadata(wheel, metadata):
    assert in_wheel(wheel, "-c", "import nlgraft; print(nlgraft.__version__)").strip() == PROJECT["version"]
    systems = json.loads(in_wheel(wheel, "-m", "nlgraft", "systems", "--json"))
    papers = {one["name"]: one["paper"].split()[-1] for one in systems}
    assert papers == dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    found = in_wheel(wheel, "-c", "import nlgraft, trainables.multi_source as one; print(one.__file__)")
    assert Path(found).is_relative_to(wheel / "nlgraft")


def test_the_wheel_installs_one_package(wheel):
    """Another distribution may have a top-level ``trainables``, too."""
    assert {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")} == {"nlgraft"}


def test_the_studies_run_by_name_from_the_wheel(wheel):
    studies = json.loads(in_wheel(wheel, "-m", "nlgraft", "studies", "--json"))
    assert len(studies) == len([*ROOT.glob("search_spaces/*/*.yaml")])
    done = in_wheel(wheel, "-m", "nlgraft", "trial", "demo", *SMALL_DEMO, "--cell", "arm=avg_eg", "--json")
    assert json.loads(done)["state"] == "finished"
