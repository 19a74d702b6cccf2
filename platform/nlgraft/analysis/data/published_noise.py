"""Seed noise of the studies that nlgraft ships, for stores that know no study like the one they judge.

``python -m benchmarks.published_noise STORE`` writes the file from the stores that these studies ran in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

FILE = Path(__file__).with_suffix(".jsonl")
"""The published rows, one JSON object a line."""


@dataclass(frozen=True, kw_only=True)
class PublishedNoise:
    """The noise of one metric in one study, of differences between trainings of two kinds.

    Attributes:
        study: Name of the study, with its scale.
        date: When it was computed, ISO 8601.
        system: Its system.
        metric: Name of the metric.
        stages: Names of the stages that are trained for each seed, of either training, sorted.
        num_tokens: Tokens that the longer of them is trained on.
        num_segments: Segments of the test set; 1 where a store does not hold them.
        variance: Pooled variance of a paired difference between seeds.
        df: Its degrees of freedom.
        configs: Digests of the settings of the study's cells.
        seeds: Their seeds.
    """

    study: str
    date: str
    system: str
    metric: str
    stages: tuple[tuple[str, ...], ...]
    num_tokens: int
    num_segments: int
    variance: float
    df: float
    configs: tuple[str, ...]
    seeds: tuple[int, ...]


_ROW = TypeAdapter(PublishedNoise)


@cache
def published_noise() -> tuple[PublishedNoise, ...]:
    """Read what is published, one row for each study, metric and pair of kinds."""
    return tuple(map(_ROW.validate_json, FILE.read_text("utf-8").splitlines()))
