"""Score of the tests on mutants: small faults that cosmic-ray's operators put into the code, one at a time.

``python -m benchmarks.mutation study/planning --num 60 --seed 1`` draws places of a room at random, puts one
random fault into each, and runs the tests that reach the place, the fastest first, up to the first failure.
Every mutant has a process of its own, forked with the libraries loaded, and works on a copy of the tree.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

ROOT = Path(__file__).parent.parent
PACKAGE = "platform/nlgraft"
ROOMS: dict[str, list[str]] = {
    "study/planning": ["unit/study", "unit/analysis/test_looks.py"],
    "pipeline": [
        "unit/pipeline",
        "contract/test_stores.py",
        "contract/test_store_locks.py",
        "contract/test_journals.py",
    ],
    "execution": ["unit/execution"],
    "analysis/estimates": ["unit/analysis", "invariants/test_statistics.py"],
    "training/loop.py": [
        "unit/training",
        "invariants/test_training_resume.py",
        "invariants/test_training_workers.py",
    ],
    "nn/generation.py": [
        "unit/nn/test_generation.py",
        "unit/nn/test_decoder_state.py",
        "invariants/test_decoding_switches.py",
    ],
}
"""Tests below ``tests/`` that need no Ray cluster, by room of the package."""
SLACK_S, SLACK_FACTOR = 20.0, 5.0
"""A mutant whose tests run longer than this, above what they took without a fault, counts as killed."""


@dataclass(frozen=True)
class Mutant:
    """One fault: the occurrence of an operator in a file, and what became of it."""

    path: str
    line: int
    operator: str
    occurrence: int
    was: str = ""
    is_now: str = ""
    outcome: str = ""
    killer: str = ""
    num_tests: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True)
class Baseline:
    """The tests of a room without a fault.

    Attributes:
        durations_s: Time of each.
        reached: Tests that reach a line, by ``file:line``.
        libraries: Modules of other packages that they load.
    """

    durations_s: dict[str, float]
    reached: dict[str, list[str]]
    libraries: list[str]


class Recorder:
    """Pytest plugin that notes the outcome of tests and, where asked, the lines of a room that each reaches.

    Args:
        chosen: Tests to run, in order; None: all.
        traced: The room; None: lines are not noted.
    """

    def __init__(self, chosen: Sequence[str] | None, traced: Path | None) -> None:
        self.chosen = chosen
        self.traced = str(traced)
        self.is_tracing = traced is not None
        self.durations_s: dict[str, float] = defaultdict(float)
        self.failed = ""
        self.reached: dict[str, set[str]] = defaultdict(set)
        self._test = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests, in their order."""
        if self.chosen is not None:
            by_id = {item.nodeid: item for item in items}
            items[:] = [by_id[name] for name in self.chosen if name in by_id]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test together with its fixtures."""
        self._test = item.nodeid
        if self.is_tracing:
            threading.settrace(self._trace)
            sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # pyright: ignore[reportArgumentType]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up durations; remember the first failure."""
        self.durations_s[report.nodeid] += report.duration
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is a failure."""
        if report.failed:
            self.failed = self.failed or report.nodeid

    def _trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(self.traced):
            return None
        if frame.f_code.co_name != "<module>":
            self.reached[f"{frame.f_code.co_filename}:{frame.f_lineno}"].add(self._test)
        return self._trace


def run_tests(copy: Path, files: Sequence[str], recorder: Recorder) -> int:
    """Run tests of a copy of the tree in this process, quietly, up to the first failure."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(copy / "platform"), str(copy)])
    os.environ.setdefault("NLGRAFT_DATA", str(ROOT.parent / "shared" / "data"))
    sys.path[:0] = [str(copy / "platform"), str(copy)]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are among the loaded libraries
    return int(pytest.main([*options, *files], plugins=[recorder]))


def forked(work: Callable[[], object], limit_s: float, log: Path) -> Any:
    """Do work in a process of its own.

    Returns:
        What the work returned; None when the process died or was stopped at the limit.
    """
    with tempfile.NamedTemporaryFile() as answer:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1), os.dup2(descriptor, 2)
            sys.dont_write_bytecode = "mutant" in log.name
            try:
                Path(answer.name).write_text(json.dumps(work()))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        ends_at = time.monotonic() + limit_s
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > ends_at:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what the tests left behind
        text = Path(answer.name).read_text()
    return json.loads(text) if text else None


def measure(copy: Path, room: str) -> Baseline:
    """Run the tests of a room without a fault; they must pass."""

    def work() -> dict[str, Any]:
        recorder = Recorder(None, copy / PACKAGE / room)
        code = run_tests(copy, [f"tests/{name}" for name in ROOMS[room]], recorder)
        assert code == 0, f"the tests of {room} fail without a fault: {recorder.failed}"
        libraries = [
            name
            for name, module in list(sys.modules.items())
            if "site-packages" in (getattr(module, "__file__", None) or "")
        ]
        reached = {place: sorted(tests) for place, tests in recorder.reached.items()}
        return asdict(Baseline(dict(recorder.durations_s), reached, libraries))

    answer = forked(work, 1800, copy / "baseline.log")
    if answer is None:
        raise SystemExit(f"no baseline; see {copy / 'baseline.log'}")
    return Baseline(**answer)


def annotations(source: str) -> set[tuple[int, int]]:
    """Positions (line, column) inside annotations, where a fault changes nothing."""
    places = set()
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            part = getattr(node, name, None)
            for inner in ast.walk(part) if part is not None else ():
                if isinstance(inner, ast.expr):
                    end = inner.end_col_offset or 0
                    places |= {(inner.lineno, column) for column in range(inner.col_offset, end)}
    return places


def places_of(path: Path) -> dict[tuple[int, int], list[Mutant]]:
    """Every place of a file that an operator changes, with the faults possible there."""
    source = path.read_text()
    idle = annotations(source)
    places: dict[tuple[int, int], list[Mutant]] = defaultdict(list)
    provider = OperatorProvider()
    for name in provider:
        if provider[name].arguments():
            continue
        operator = provider[name]()
        positions = [
            start for node in ast_nodes(get_ast(source)) for start, _ in operator.mutation_positions(node)
        ]
        for occurrence, start in enumerate(positions):
            if start not in idle:
                places[start].append(Mutant(str(path.relative_to(ROOT)), start[0], name, occurrence))
    return places


def draw(room: str, num: int, seed: int) -> list[Mutant]:
    """Draw faults of a room: places with equal chances, then one of the faults possible there."""
    whole = ROOT / PACKAGE / room
    files = sorted(whole.glob("*.py")) if whole.is_dir() else [whole]
    places = [faults for path in files for _, faults in sorted(places_of(path).items())]
    choice = random.Random(f"{room} {seed}")
    choice.shuffle(places)
    drawn: list[Mutant] = []
    for faults in places:
        fault = choice.choice(faults)
        if len(drawn) < num and mutate(fault) is not None:
            drawn.append(fault)
    return drawn


def mutate(mutant: Mutant) -> str | None:
    """The file with the fault; None where it no longer compiles or means the same."""
    source = (ROOT / mutant.path).read_text()
    try:
        mutated = mutate_code(source, OperatorProvider()[mutant.operator](), mutant.occurrence)
        same = ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source))
    except (SyntaxError, AttributeError):  # cosmic-ray 8.7 fails on `except module.Error`
        return None
    return None if same else mutated


def lines_around(source: str, line: int) -> range | None:
    """The lines of the innermost statement, without the statements inside it; None for what imports run."""
    innermost: tuple[ast.stmt, bool] | None = None

    def look(parent: ast.AST, is_inside: bool) -> None:
        nonlocal innermost
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
                innermost = (node, is_inside)
            look(node, is_inside or isinstance(node, ast.FunctionDef | ast.Lambda))

    look(ast.parse(source), False)
    if innermost is None or not innermost[1]:
        return None
    statement = innermost[0]
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or line) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def tests_of(copy: Path, mutant: Mutant, baseline: Baseline) -> list[str]:
    """The tests that reach a fault, the fastest first; of what an import runs, all of the room."""
    lines = lines_around((ROOT / mutant.path).read_text(), mutant.line)
    if lines is None:
        reaching = set(baseline.durations_s)
    else:
        places = [f"{copy / mutant.path}:{line}" for line in {mutant.line, *lines}]
        reaching = {name for place in places for name in baseline.reached.get(place, ())}
    return sorted(reaching, key=lambda name: baseline.durations_s[name])


def try_out(copy: Path, mutant: Mutant, baseline: Baseline) -> Mutant:
    """Run the tests that reach a fault; without any it survives unreached."""
    mutated = mutate(mutant)
    assert mutated is not None
    lines = (ROOT / mutant.path).read_text().splitlines(), mutated.splitlines()
    was, is_now = next((a, b) for a, b in zip(*lines, strict=False) if a != b)
    tests = tests_of(copy, mutant, baseline)
    limit_s = SLACK_S + SLACK_FACTOR * sum(baseline.durations_s[name] for name in tests)

    def work() -> str:
        recorder = Recorder(tests, None)
        code = run_tests(copy, [*dict.fromkeys(name.partition("::")[0] for name in tests)], recorder)
        return (recorder.failed or f"exit code {code}") if code else ""

    target = copy / mutant.path
    before = target.stat()
    target.write_text(mutated)
    began_s = time.monotonic()
    try:
        killer = forked(work, limit_s, copy / "mutant.log") if tests else ""
    finally:
        shutil.copyfile(ROOT / mutant.path, target)
        os.utime(
            target, ns=(before.st_atime_ns, before.st_mtime_ns)
        )  # the bytecode of the original stays valid
    return replace(
        mutant,
        was=was.strip(),
        is_now=is_now.strip(),
        outcome="killed" if killer != "" else "survived" if tests else "unreached",
        killer="died or ran past its limit" if killer is None else killer,
        num_tests=len(tests),
        duration_s=round(time.monotonic() - began_s, 1),
    )


def main() -> None:
    """Draw and try mutants of a room; print one JSON line for each and the score."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("--num", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "runs"))
        baseline = measure(copy, options.room)
        for name in baseline.libraries:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        tried = []
        for mutant in draw(options.room, options.num, options.seed):
            tried.append(try_out(copy, mutant, baseline))
            sys.stdout.write(json.dumps(asdict(tried[-1])) + "\n")
            sys.stdout.flush()
    num_killed = sum(mutant.outcome == "killed" for mutant in tried)
    sys.stdout.write(f"| {options.room} | {len(tried)} | {num_killed} | {num_killed / len(tried):.0%} |\n")


if __name__ == "__main__":
    main()
