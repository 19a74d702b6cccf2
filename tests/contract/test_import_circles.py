"""No module imports itself by way of others; imports inside functions and for type checkers count as well."""

from __future__ import annotations

import graphlib
import sys
from pathlib import Path

import grimp
import pytest


def circle(*packages: str) -> list[str]:
    """A circle of imports, also one by way of a package's ``__init__``; empty if there is none."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    try:
        graphlib.TopologicalSorter(
            {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        ).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle("nlgraft", "trainables") == []


def test_lazy_and_type_only_imports_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "circular_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("def f():\n    from circular_package import b\n")
    (package / "b.py").write_text(
        "import typing\nif typing.TYPE_CHECKING:\n    from circular_package.c import C\n"
    )
    (package / "c.py").write_text("import circular_package.a\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert {name.rpartition(".")[2] for name in circle("circular_package")} == {"a", "b", "c"}
