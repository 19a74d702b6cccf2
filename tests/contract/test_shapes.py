"""Docstrings of public functions on tensors state the shapes."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "platform" / "nlgraft"
MODULES = sorted(path for part in ("nn", "training", "evaluation") for path in (ROOT / part).rglob("*.py"))
TENSOR = re.compile(r"\bTensor\b|\bNDArray\b|\bStatistics\b")
SHAPE = re.compile(r"\[[^\]]*\]|\(\.\.\.|\([A-Z], |\bscalar\b|\bshapes?\b", re.IGNORECASE)
SUFFIX = re.compile(r"_[A-Z0-9][A-Za-z0-9]*$")


def functions(module):
    """Public functions and methods by their name."""
    for node in module.body:
        members = [node] if not isinstance(node, ast.ClassDef) else node.body
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            name = owner + getattr(member, "name", "_")
            is_overload = any("overload" in ast.unparse(d) for d in getattr(member, "decorator_list", []))
            if (
                isinstance(member, ast.FunctionDef)
                and "_" not in (name[0], member.name[0])
                and not is_overload
            ):
                yield name, member


def described(docstring, name):
    """Find a docstring's part on an argument or on ``Returns``; all of it where it has no such part."""
    part = re.search(rf"^ *{name}:(.*?)(?=^ *\w+:|\Z)", docstring, re.DOTALL | re.MULTILINE)
    return part.group(1) if part else docstring


def without_shapes(function):
    """Arguments and result that are tensors and whose shape neither name nor docstring says."""
    docstring = ast.get_docstring(function) or ""
    arguments = [a for a in (*function.args.args, *function.args.kwonlyargs) if a.annotation is not None]
    for argument in arguments:
        written = ast.unparse(argument.annotation)
        is_tensor = TENSOR.search(written) and "Mapping" not in written  # those are of many shapes
        if (
            is_tensor
            and not SUFFIX.search(argument.arg)
            and not SHAPE.search(described(docstring, argument.arg))
        ):
            yield argument.arg
    returned = ast.unparse(function.returns) if function.returns else ""
    if TENSOR.search(returned) and not SHAPE.search(described(docstring, "Returns")):
        yield "Returns"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_say_shapes(path):
    module = ast.parse(path.read_text(encoding="utf-8"))
    missing = {name: list(without_shapes(function)) for name, function in functions(module)}
    assert {name: what for name, what in missing.items() if what} == {}


def test_a_missing_shape_is_noticed():
    source = '''
def good(x_BT: Tensor, y: Tensor) -> Tensor:
    """Add.

    Args:
        x_BT: One.
        y: Other, [B, T].

    Returns:
        Sum [B, T].
    """
def bad(x: Tensor) -> Tensor:
    """Double.

    Args:
        x: Any.

    Returns:
        Twice that.
    """
'''
    missing = {name: list(without_shapes(function)) for name, function in functions(ast.parse(source))}
    assert missing == {"good": [], "bad": ["x", "Returns"]}
