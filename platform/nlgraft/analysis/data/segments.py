"""What the scores of a study's trials are scored on: the bytes of the test lines, for every metric."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nlgraft.analysis.data.ledger import Segments, scored_lines, segments_of
from nlgraft.analysis.data.trials import TrialResult


@dataclass(frozen=True)
class ScoredLines:
    """A set of lines.

    Attributes:
        segments: The lines as the ledger describes them.
        legacy: The same as entries of version 1 describe them.
    """

    segments: Segments
    legacy: Segments


def scored_lines_of(
    trials: Sequence[TrialResult], splits: Sequence[str], data: Mapping[str, Any]
) -> ScoredLines:
    """Describe the lines that trials were scored on.

    Args:
        trials: Finished trials; the first one that has the lines stored tells them.
        splits: Names of the split, the likeliest first.
        data: The study's data, whose texts are named where no trial has its lines stored.
    """
    for split in splits:
        for trial in trials:
            if (texts := _texts(trial, split)) is not None:
                sources, references, legacy = texts
                lines = scored_lines(sources, references)
                return ScoredLines(Segments.of(lines), Segments.of(legacy or _settings(splits[-1], data)))
    return ScoredLines(segments_of([], splits[-1], data), Segments.of(_settings(splits[-1], data)))


def _texts(trial: TrialResult, split: str) -> tuple[list[str], list[str], list[str]] | None:
    """Read sources, references and the lines of version 1, which are those of stored references alone."""
    streams = {role: trial.read_stream(split, role) or [] for role in ("source 0", "target", "label")}
    sources, target, labels = streams.values()
    scored = (trial.read_texts(split) or ([], []))[1]
    references = target or labels or scored or sources
    is_paired = len(sources) == len(scored)
    legacy = ["\t".join(pair) for pair in zip(sources, scored, strict=True)] if is_paired else scored
    return (sources, references, legacy) if references else None


def _settings(split: str, data: Mapping[str, Any]) -> list[str]:
    return [f"{split} {json.dumps(data, sort_keys=True, ensure_ascii=False)}"]
