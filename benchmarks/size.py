"""How large the house is, by room: ``make size``, or ``python -m benchmarks.size FOLDER ...``.

Size is counted in tokens of Python without comments, docstrings, line ends and indentation, so that neither
long docstrings nor wrapped lines count; tokens a code line tell the density.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import defaultdict
from dataclasses import astuple, dataclass
from pathlib import Path

_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
VAGUE_NAMES = {
    *("found", "one", "theirs", "ours", "asked", "lost", "known", "own", "awaited", "given", "left", "said"),
    *("told", "meant", "wanted", "every", "who"),
}
"""Local names that say how the author came by a value, and not what it is."""
DEPTH = 2
"""Folders below a root that are counted apart."""


@dataclass(frozen=True)
class Size:
    """Sums over files of Python."""

    modules: int = 0
    lines: int = 0
    code_lines: int = 0
    tokens: int = 0
    comments: int = 0
    functions: int = 0
    vague_functions: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        density = self.tokens / max(self.code_lines, 1)
        comments = 100 * self.comments / max(self.lines, 1)
        vague = 100 * self.vague_functions / max(self.functions, 1)
        counts = f"{self.tokens:9,d} {self.lines:8,d} {self.modules:8d}"
        return f"{counts} {density:12.1f} {comments:13.1f} {vague:8.1f}"


def size_of(text: str) -> Size:
    """Measure the text of one module."""
    tree = ast.parse(text)
    docstring_lines = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    code = [
        token
        for token in tokens
        if token.type not in _LAYOUT
        and not (token.type == tokenize.STRING and token.start[0] in docstring_lines)
    ]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Size(
        modules=1,
        lines=len(text.splitlines()),
        code_lines=len({token.start[0] for token in code}),
        tokens=len(code),
        comments=sum(
            token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens
        ),
        functions=len(functions),
        vague_functions=sum(bool(VAGUE_NAMES & _local_names(function)) for function in functions),
    )


def _local_names(function: ast.AST) -> set[str]:
    """Return the names that a function stores, and its arguments, including those of functions inside it."""
    nodes = list(ast.walk(function))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def sizes(root: Path) -> dict[str, Size]:
    """Measure each folder with code below a root, ``DEPTH`` folders deep."""
    rooms: dict[str, Size] = defaultdict(Size)
    for path in sorted(root.rglob("*.py")):
        folders = path.relative_to(root).parts[:-1][:DEPTH]
        rooms["/".join((root.name, *folders))] += size_of(path.read_text(encoding="utf-8"))
    return rooms


def main() -> None:
    """Print a line for each room and one for each root."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folders", nargs="*", type=Path, default=[Path("platform"), Path("trainables"), Path("tests")]
    )
    print(
        "   tokens    lines  modules  tokens/line  comments/100  vague %  (of code lines, lines, functions)"
    )
    for root in parser.parse_args().folders:
        rooms = sizes(root)
        for name, size in rooms.items():
            print(size, name)
        print(sum(rooms.values(), Size()), f"{root}: all")


if __name__ == "__main__":
    main()
