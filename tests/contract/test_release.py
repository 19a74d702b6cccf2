"""One version everywhere, and a wheel with complete metadata that works without the repository."""

import ast
import email
import json
import os
import re
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.processes import python
from tests.small_studies import SMALL_DEMO
from tests.wheels import build_wheel

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ASKED_FOR = {"botocore"}
"""Packages that are used if they are there, in an `except ImportError`."""
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder that holds the wheel's files as a user installs them."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build_wheel(folder)) as archive:
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
    return python("-S", *arguments, cwd=wheel.parent, env=environment).stdout


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
    tried = {"Programming Language :: Python :: 3.11", "Programming Language :: Python :: 3.13"}
    assert tried <= {*metadata.get_all("Classifier")}
    assert "ablation study" in metadata["Keywords"].split(",")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# nlgraft\n")
    (licence,) = wheel.glob("*.dist-info/licenses/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_every_package_that_is_imported_is_required(wheel, metadata):
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    development = re.compile(r"extra == .(test|check|bench|docs)")
    names = {
        canonicalize_name(requirement.name)
        for requirement in requirements
        if not development.search(str(requirement.marker))
    }
    always = [requirement.name for requirement in requirements if requirement.marker is None]
    # what a required package requires is there, too: pydantic_core, SQLAlchemy of MLflow
    names |= {
        canonicalize_name(Requirement(text).name) for package in always for text in requires(package) or []
    }
    imported = set()
    for path in wheel.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    distributions = packages_distributions()
    others = imported - sys.stdlib_module_names - {"nlgraft", "trainables", *ASKED_FOR}
    missing = {
        name
        for name in others
        if not names & {canonicalize_name(distribution) for distribution in distributions.get(name, [name])}
    }
    assert len(others) > 20
    assert missing == set()


def test_the_wheel_alone_lists_the_systems_with_the_papers_of_its_metadata(wheel, metadata):
    assert in_wheel(wheel, "-c", "import nlgraft; print(nlgraft.__version__)").strip() == PROJECT["version"]
    systems = json.loads(in_wheel(wheel, "-m", "nlgraft", "systems", "--json"))
    # Scripts have papers of their own.
    papers = {
        system["name"]: system["paper"].split()[-1] for system in systems if system["name"] != "command"
    }
    assert len(papers) == len(systems) - 1
    assert papers == dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    module_file = in_wheel(wheel, "-c", "import nlgraft, trainables.multi_source as one; print(one.__file__)")
    assert Path(module_file).is_relative_to(wheel / "nlgraft")


def test_the_wheel_installs_one_package(wheel):
    """Another distribution may have a top-level ``trainables``, too."""
    assert {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")} == {"nlgraft"}


def test_the_studies_run_by_name_from_the_wheel(wheel):
    studies = json.loads(in_wheel(wheel, "-m", "nlgraft", "studies", "--json"))
    assert len(studies) == len([*ROOT.glob("search_spaces/*/*.yaml")])
    done = in_wheel(wheel, "-m", "nlgraft", "trial", "demo", *SMALL_DEMO, "--cell", "arm=avg_eg", "--json")
    assert json.loads(done)["state"] == "finished"
