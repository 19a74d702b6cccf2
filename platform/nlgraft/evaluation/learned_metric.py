"""Learned metrics: any callable that scores segments, named by its import path.

It maps sources, hypotheses and references, each a list with one text per segment, to one number per segment::

    class Similarity:
        def __init__(self, checkpoint: str, batch_size: int = 32) -> None: ...
        def __call__(self, sources, hypotheses, references) -> Sequence[float]: ...

A class is built once with the metric's options, and with ``checkpoint`` if the study gives one; a function
gets them as keyword arguments of each call.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.overlap import mean_rows
from nlgraft.evaluation.sufficient import Statistics

SegmentScorer = Callable[[Sequence[str], Sequence[str], Sequence[str]], Sequence[float]]
_ELSEWHERE = "nlgraft.evaluation.learned_metric:Program"
_SHOWN = 500


class Program:
    """A metric that another program computes, for packages that cannot be installed beside nlgraft.

    The program reads one JSON object per line, ``{"src": ..., "mt": ..., "ref": ...}``, from its standard
    input and writes one number per line. unbabel-comet 2.2 needs numpy 1 and transformers 4: install it in
    an environment of its own, and name that environment's Python in ``command``.

    Args:
        command: The program and its arguments.
        checkpoint: Appended to the command, if there is one.
    """

    def __init__(self, command: Sequence[str], checkpoint: str | None = None) -> None:
        self._command = [*command, *([] if checkpoint is None else [checkpoint])]

    def __call__(
        self,
        sources: Sequence[str],
        hypotheses: Sequence[str],
        references: Sequence[str],
    ) -> list[float]:
        """Run the program once over all segments."""
        rows = zip(sources, hypotheses, references, strict=True)
        lines = [json.dumps({"src": src, "mt": mt, "ref": ref}) for src, mt, ref in rows]
        done = subprocess.run(self._command, input="\n".join(lines) + "\n", capture_output=True, text=True)
        if done.returncode:
            end = done.stderr.strip()[-_SHOWN:]
            raise DataError(f"{self._command[0]} ended with exit code {done.returncode}: {end}")
        try:
            return [float(line) for line in done.stdout.split()]
        except ValueError as error:
            raise DataError(f"{self._command[0]} wrote something else than numbers: {error}") from error


def find_target(path: str) -> Callable[..., Any]:
    """Import a metric by its path, ``package.module:name``.

    Raises:
        DataError: The path, its module or a package that it needs is missing.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not name.isidentifier() or not all(map(str.isidentifier, module_name.split("."))):
        raise DataError(f"{path!r} is no import path; write package.module:name, e.g. my_metrics:Comet")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if (module_name + ".").startswith(missing + "."):
            raise DataError(
                f"{path}: there is no module {missing!r}; put it into the working directory or install it"
            ) from error
        raise DataError(
            f"{path} needs the package {missing!r}, which is not installed: install it, or into an "
            f"environment of its own whose Python {_ELSEWHERE} calls (docs/learned_metrics.md)"
        ) from error
    except ImportError as error:
        raise DataError(f"{path} cannot be imported: {error}") from error
    target = getattr(module, name, None)
    if not callable(target):
        raise DataError(f"{path}: {module_name} has no function or class {name!r}")
    return target


def check_scorer(path: str, options: Mapping[str, Any]) -> None:
    """Check a metric without building it, since that may load a large model.

    Raises:
        DataError: It cannot be imported, or names a program that is not there.
    """
    if find_target(path) is Program:
        command = options.get("command")
        if (
            not isinstance(command, list)
            or not command
            or not all(isinstance(argument, str) for argument in command)
        ):
            raise DataError(f"options.command is {command!r}; give the program and its arguments as a list")
        if shutil.which(command[0]) is None:
            raise DataError(f"options.command: there is no program {command[0]!r}; give its path")


def build_scorer(
    path: str,
    checkpoint: str | None,
    options: Mapping[str, Any],
) -> SegmentScorer:
    """Build a metric.

    Raises:
        DataError: It cannot be imported.
    """
    target = find_target(path)
    arguments = dict(options) if checkpoint is None else {**options, "checkpoint": checkpoint}
    return target(**arguments) if isinstance(target, type) else partial(target, **arguments)


def learned_rows(
    scorer: SegmentScorer,
    name: str,
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
) -> Statistics:
    """Score every segment.

    Returns:
        Statistics [N, 2], those of ``mean_rows``.

    Raises:
        DataError: The metric gives another number of scores than segments, or one that is not finite.
    """
    scores = np.asarray(scorer(list(sources), list(hypotheses), list(references)), dtype=np.float64)
    if scores.shape != (len(hypotheses),):
        raise DataError(
            f"{name}: scores of shape {scores.shape} for {len(hypotheses)} segments; return one for each"
        )
    if not np.isfinite(scores).all():
        first = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise DataError(f"{name}: segment {first + 1} has the score {scores[first]}, which is not finite")
    return mean_rows(scores)
