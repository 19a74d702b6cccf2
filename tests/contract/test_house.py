"""The house keeps its own rules."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nlgraft

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("platform/**/*.py"), *ROOT.glob("trainables/**/*.py")])


def test_platform_is_the_standard_library() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert Path(platform.__file__).name == "platform.py"
    assert ROOT not in Path(platform.__file__).parents


def test_no_init_file_under_tests() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    names = {path.stem for path in SOURCES} - {"__init__", "__main__"}
    assert not names & (sys.stdlib_module_names - {"platform"})


def test_the_public_names_are_what_is_said() -> None:
    assert sorted(nlgraft.__all__) == ["Handle", "Study", "launch", "load"]
    for name in nlgraft.__all__:
        assert getattr(nlgraft, name).__module__.startswith("nlgraft.")
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = nlgraft.nothing_like_it


@pytest.mark.parametrize(
    "statement",
    [
        "from nlgraft.study.public import Study",
        "import nlgraft.cli",
        "from nlgraft.study.reading.system import load_system; load_system('trainables.embedding_transfer')",
        "from nlgraft.cli import main; main(['validate', 'search_spaces/embedding_transfer/demo.yaml'],"
        " standalone_mode=False)",
    ],
)
def test_reading_a_study_imports_nothing_heavy(statement: str) -> None:
    heavy = ["ray", "torch", "mlflow", "optuna", "matplotlib", "pandas", "scipy", "transformers"]
    check = f"import sys; found = [m for m in {heavy} if m in sys.modules]; print('HEAVY', found)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{statement}; {check}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}", "PATH": "/usr/bin:/bin"},
        check=True,
    )
    assert "HEAVY []" in ran.stdout


def test_a_sweep_of_single_workers_imports_no_torch_in_its_driver() -> None:
    code = (
        "import sys, nlgraft.execution.sweep, nlgraft.execution.trainable; assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


def test_every_system_has_its_readme_and_is_listed() -> None:
    systems = [path.parent for path in ROOT.glob("trainables/*/config.py")]
    assert systems
    for system in systems:
        assert (system / "README.md").is_file(), system
        assert list((ROOT / "search_spaces" / system.name).glob("*.yaml")), system


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = [path.parent.name for path in ROOT.glob("platform/nlgraft/*/__init__.py")]
    assert [name for name in packages if f"{name}/" not in text] == []


def test_the_readme_names_files_that_exist() -> None:
    for document in ("README.md", "ARCHITECTURE.md"):
        text = (ROOT / document).read_text()
        for name in re.findall(r"`((?:search_spaces|trainables|platform|tests|benchmarks)/[\w./-]+)`", text):
            assert (ROOT / name).exists(), f"{document} names {name}"


def test_nothing_in_the_store_is_unpickled() -> None:
    # a pickle travels only between the driver and its own workers, never through the store
    allowed = {"execution"}
    for path in ROOT.glob("platform/nlgraft/**/*.py"):
        if path.parent.name not in allowed:
            found = re.search(r"\bpickle\.loads?\b|torch\.load\b|allow_pickle=True", path.read_text())
            assert not found, path
    for path in ROOT.glob("trainables/**/*.py"):
        assert not re.search(r"\bpickle\b|torch\.load\b", path.read_text()), path
