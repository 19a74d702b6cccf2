"""Metrics that a system reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Meaning of one number that the trials of a system report.

    Attributes:
        direction: The better direction.
        unit: Unit of the value, e.g. ``BLEU points``, ``nats``, ``s``.
        split: Split it is computed on; None for a value without one, such as a number of parameters.
        is_time: True for times and speeds, which differ from run to run.
        is_fixed: True for what config and data determine, whatever is trained: a number of parameters, the
            length of the references.
        description: What is measured.
    """

    direction: Literal["maximize", "minimize"]
    unit: str
    split: Literal["dev", "test"] | None
    is_time: bool = False
    is_fixed: bool = False
    description: str = ""
