"""Files of a scored split, from which reports are made without the model.

``metrics.json``                   ``{"test/bleu": {"value", "n", "signature", "direction"}}``
``segments-<split>.safetensors``   sufficient statistics of every segment, by metric, [N, k]
``hypotheses-<split>.txt``         one text per line, as sacreBLEU, COMET and people read it
``references-<split>.txt``         likewise

Line breaks inside a text, of any kind that ``str.splitlines`` knows (LF, CR, U+2028...), are written as
spaces: no metric distinguishes them, so the files give the scores of ``metrics.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from nlgraft.basics.errors import StoreError
from nlgraft.evaluation.scores import Evaluation, Score
from nlgraft.evaluation.sufficient import Statistics

METRICS_FILE = "metrics.json"


_LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write texts, one per line; line breaks inside a text become spaces."""
    path.write_bytes("".join(f"{one_line(line)}\n" for line in lines).encode())


def one_line(line: str) -> str:
    """Replace the line breaks of a text by spaces, as in a file of lines."""
    return _LINE_BREAK.sub(" ", line)


def read_lines(path: Path) -> list[str]:
    """Read the texts that ``write_lines`` wrote."""
    return parse_lines(path.read_bytes())


def parse_lines(data: bytes) -> list[str]:
    """Parse the texts that ``write_lines`` wrote."""
    return data.decode().split("\n")[:-1]


def write_metrics(directory: Path, scores: Mapping[str, Score]) -> None:
    """Add scores to the artifact's ``metrics.json``, by whole names: ``dev/bleu``, ``parameters/total``."""
    path = directory / METRICS_FILE
    metrics = read_metrics(directory) | {name: score.to_json() for name, score in scores.items()}
    path.write_text(json.dumps(metrics, indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")


def read_metrics(directory: Path) -> dict[str, dict[str, Any]]:
    """Read an artifact's ``metrics.json``.

    Returns:
        ``{"test/bleu": {"value", "n", "signature", "direction"}}``; empty when the artifact has no metrics.
    """
    path = directory / METRICS_FILE
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write_segments(
    directory: Path,
    split: str,
    statistics: Mapping[str, Statistics],
) -> None:
    """Write the statistics of every segment of a split: by metric name, each [N, k].

    Args:
        directory: Artifact being written; its statistics of other metrics stay.
        split: The split, or the prefix of metrics such as ``random_source_0/test_bleu``.
        statistics: By the rest of the metric's name.
    """
    arrays = {name: np.ascontiguousarray(rows, dtype=np.float64) for name, rows in statistics.items()}
    path = directory / f"segments-{split}.safetensors"
    save_file({**(load_file(path) if path.exists() else {}), **arrays}, path)


def read_segments(directory: Path, split: str) -> dict[str, Statistics]:
    """Read what ``write_segments`` wrote: by metric name, each [N, k].

    Raises:
        StoreError: The artifact holds no statistics of this split.
    """
    path = directory / f"segments-{split}.safetensors"
    if not path.exists():
        raise StoreError(f"{directory}: no statistics of split '{split}'; was it scored on it?")
    return load_file(path)


def write_evaluation(
    directory: Path,
    split: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    evaluation: Evaluation,
    extra_metrics: Mapping[str, Score] | None = None,
) -> None:
    """Write a scored split; the artifact may already hold another one.

    Args:
        directory: Artifact being written.
        split: dev or test.
        hypotheses: System outputs.
        references: Human texts.
        evaluation: Scores and statistics.
        extra_metrics: Scores without statistics, by their names without the split.
    """
    write_lines(directory / f"hypotheses-{split}.txt", hypotheses)
    write_lines(directory / f"references-{split}.txt", references)
    write_segments(directory, split, evaluation.statistics)
    scores = {**evaluation.scores, **(extra_metrics or {})}
    write_metrics(directory, {f"{split}/{name}": score for name, score in scores.items()})
