"""No module imports itself by way of others; imports inside functions and for type checkers count as well."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"nlgraft": ROOT / "platform" / "nlgraft", "trainables": ROOT / "trainables"}


def _modules(packages: dict[str, Path]) -> dict[str, Path]:
    modules = {}
    for package, folder in packages.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


def _imports(module: str, path: Path, known: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}:{node.lineno}: a relative import"
            # `from package import name` imports a module of the package, or a name of the package itself
            qualified = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {full if full in known else node.module for full in qualified.values()}
    return (names & known) - {module}


def _graph(packages: dict[str, Path]) -> dict[str, set[str]]:
    modules = _modules(packages)
    return {module: _imports(module, path, set(modules)) for module, path in modules.items()}


def _circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_module_imports_itself_by_way_of_others():
    graph = _graph(PACKAGES)
    assert len(graph) > 100
    assert _circle(graph) == []


def test_lazy_and_type_only_imports_count(tmp_path):
    (tmp_path / "__init__.py").touch()
    (tmp_path / "a.py").write_text("def f():\n    from p import b\n")
    (tmp_path / "b.py").write_text("import typing\nif typing.TYPE_CHECKING:\n    from p.c import C\n")
    (tmp_path / "c.py").write_text("import p.a\n")
    graph = _graph({"p": tmp_path})
    assert graph == {"p": set(), "p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": {"p.a"}}
    assert sorted(_circle(graph)[1:]) == ["p.a", "p.b", "p.c"]
