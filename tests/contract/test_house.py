"""The code base keeps the project's rules: formatting, layers, sizes."""

import graphlib
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_overloads

import grimp
import pytest
import yaml

import nlgraft
from nlgraft.analysis.policy.claims import Verdict
from nlgraft.execution.cluster import HEAD_RESOURCE
from tests.contract.toy_arms import SYSTEMS
from tests.processes import python

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}", "PATH": "/usr/bin:/bin"}
SOURCES = sorted([*ROOT.glob("platform/**/*.py"), *ROOT.glob("trainables/**/*.py")])


def test_platform_is_the_standard_library():
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert Path(platform.__file__).name == "platform.py"
    assert ROOT not in Path(platform.__file__).parents


def test_no_init_file_under_tests():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_module_is_named_like_one_of_the_standard_library():
    names = {path.stem for path in SOURCES} - {"__init__", "__main__"}
    assert not names & (sys.stdlib_module_names - {"platform"})


def test_the_public_names_are_what_is_said():
    assert sorted(nlgraft.__all__) == [
        "Handle", "Study", "export_model", "launch", "load", "load_model", "propose", "register",
    ]  # fmt: skip
    assert dir(nlgraft) == sorted([*nlgraft.__all__, "__version__"])
    assert (
        nlgraft.__version__ == re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    )
    returned = [overload.__annotations__["return"] for overload in get_overloads(nlgraft.launch)]
    assert returned == ["StudyResult", "Handle"]
    for name in nlgraft.__all__:
        assert getattr(nlgraft, name).__module__.startswith("nlgraft.")
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = nlgraft.nothing_like_it


HEAVY = (
    "ray",
    "torch",
    "mlflow",
    "optuna",
    "matplotlib",
    "pandas",
    "scipy",
    "transformers",
    "pyarrow",
    "datasets",
)
TRACKER = "nlgraft.tracking.mlflow_tracker"
NUMERIC = ("numpy", "sacrebleu", "sentencepiece", "datasets")
DEMO = "'search_spaces/embedding_transfer/demo.yaml'"
PARTS = [f"{path}.{name}" for path in SYSTEMS for name in ("config", "metrics", "graph")]
STEPS = [
    ("import nlgraft.commands.main", ("pydantic",)),
    # 450 modules in .25 s of CPU on an idle machine; time would say how busy it is.
    ("import nlgraft.study.public; assert len(sys.modules) < 550", HEAVY + NUMERIC),
    # The sources of classes, which hold the descriptions of settings, would take a third of `validate`.
    ("import inspect; read, inspect.findsource = inspect.findsource, sys.exit", ()),
    (f"nlgraft.study.public.Study.from_yaml({DEMO}); inspect.findsource = read", HEAVY + NUMERIC),
    ("import nlgraft.text.corpus_config", HEAVY + NUMERIC),
    (f"import nlgraft.pipeline.trial, {TRACKER}; {TRACKER}.MlflowTracker('sqlite:///x.db', 'e')", HEAVY),
    (f"import nlgraft.commands.main, {', '.join(PARTS)}", HEAVY),
    (f"nlgraft.commands.main.main(['validate', {DEMO}], standalone_mode=False)", HEAVY),
    ("import nlgraft.execution.sweep, nlgraft.execution.trainable", ("torch", "sklearn")),
]
"""What a process does in turn, and the packages that it has not imported by then."""


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = ["import sys"]
    for step, packages in STEPS:
        code += [step, f"assert not {{*{packages}}} & {{*sys.modules}}, {step!r}"]
    environment = {**os.environ, **ENVIRONMENT}
    python("-c", "\n".join(code), cwd=ROOT, env=environment)


def test_every_system_has_its_readme_and_is_listed():
    systems = {path.parent.name for path in ROOT.glob("trainables/*/config.py")}
    assert systems
    for files in ("trainables/*/README.md", "search_spaces/*/*.yaml"):
        assert systems - {path.parent.name for path in ROOT.glob(files)} == set(), files


def test_the_architecture_names_every_package():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = [path.parent.name for path in ROOT.glob("platform/nlgraft/*/__init__.py")]
    assert [name for name in packages if f"{name}/" not in text] == []


def test_the_readme_names_files_that_exist():
    for document in ("README.md", "ARCHITECTURE.md", "docs/reading_a_report.md"):
        text = (ROOT / document).read_text()
        for name in re.findall(
            r"`((?:search_spaces|trainables|platform|tests|benchmarks|docs|examples)/[\w./-]+)`", text
        ):
            assert (ROOT / name).exists(), f"{document} names {name}"


def test_the_page_on_reports_explains_every_column_and_verdict(tmp_path):
    text = (ROOT / "docs" / "reading_a_report.md").read_text()
    demo = ROOT / "search_spaces" / "embedding_transfer" / "demo.yaml"
    header = nlgraft.load(nlgraft.Study.from_yaml(demo, [f"storage.path={tmp_path}"])).comparison().header
    main = header[2]
    assert [name for name in header if f"| `{name}` |" not in text and name != main] == []
    assert [name for name in get_args(Verdict) if f"`{name}`" not in text] == []


def test_nothing_in_the_store_is_unpickled():
    # a pickle travels only between the driver and its own workers, never through the store
    for path in ROOT.glob("platform/nlgraft/**/*.py"):
        if path.parent.name != "execution":
            match = re.search(r"\bpickle\.loads?\b|torch\.load\b|allow_pickle=True", path.read_text())
            assert not match, path
    for path in ROOT.glob("trainables/**/*.py"):
        assert not re.search(r"\bpickle\b|torch\.load\b", path.read_text()), path


def run_tool(*command, cwd=ROOT):
    """Run a tool of the test environment and return its complaints; empty if there are none."""
    tool = str(Path(sys.executable).with_name(command[0]))
    path = f"{cwd / 'platform'}:{cwd}"
    done = subprocess.run(
        [tool, *command[1:]],
        cwd=cwd,
        env={**ENVIRONMENT, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_ruff_finds_nothing(command):
    assert run_tool("ruff", *command.split(), "--no-cache", "--quiet", ".") == ""


def test_the_import_contracts_hold():
    assert run_tool("lint-imports", "--no-cache", "--no-logo") == ""


def test_no_module_imports_itself_by_way_of_others():
    """The contracts compare siblings; here a package's ``__init__`` counts as well."""
    graph = grimp.build_graph("nlgraft", "trainables", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()


def test_the_import_contracts_see_a_new_system_that_imports_another(tmp_path):
    for name in ("__init__", "one/__init__", "two/__init__"):
        path = tmp_path / "trainables" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "trainables/two/graph.py").write_text("def build():\n    import trainables.one\n")
    text = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "platform").symlink_to(ROOT / "platform")
    printed = run_tool("lint-imports", "--no-cache", "--no-logo", cwd=tmp_path)
    assert "systems are independent of each other BROKEN" in printed
    assert "trainables.two.graph -> trainables.one" in printed


def test_every_folder_of_trainables_is_a_system():
    """The contract on systems compares `trainables.*`: shared code would be compared as a system."""
    folders = {path.parent.name for path in ROOT.glob("trainables/*/*.py")}  # an old one may hold bytecode
    assert folders == {path.parent.name for path in ROOT.glob("trainables/*/config.py")}
    modules = {path.name for path in (ROOT / "trainables").glob("*.py")}
    assert modules == {"__init__.py"}


def test_the_cluster_file_agrees_with_the_code():
    document = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    types = document["available_node_types"]
    assert document["head_node_type"] in types
    # CPU and GPU are what trials ask for; the head's own resource comes from Ray, no command declares it.
    assert {name for kind in types.values() for name in kind["resources"]} <= {"CPU", "GPU"}
    assert HEAD_RESOURCE == "node:__internal_head__"
    lines = [
        shlex.split(command)
        for command in document["head_start_ray_commands"] + document["worker_start_ray_commands"]
    ]
    declared = [word for line in lines for word in line if word.startswith("--resources")]
    assert declared == []
    options = {word.partition("=")[0] for line in lines for word in line if word.startswith("--")}
    from ray.scripts.scripts import start  # a command line is not needed to read its options

    help_text = " ".join(option for parameter in start.params for option in parameter.opts) + " "
    assert [option for option in sorted(options) if f"{option} " not in help_text] == []
    targets = re.findall(r"^([^\s:#]+):", (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv"), re.M)
    for command in document["setup_commands"]:
        assert command.rpartition("make ")[2] in targets
    folder = next(iter(document["file_mounts"]))
    paths = {word for line in lines for word in line if word.endswith("/ray")}
    assert paths == {f"{folder}/.venv/bin/ray"}
    exported = [word for line in lines for word in line if word.startswith("PYTHONPATH=")]
    assert exported == [f"PYTHONPATH={folder}/platform:{folder}"] * 2
