"""A worked example of a system: translation from one source language or from two."""

from __future__ import annotations

from examples.minimal_system.config import Config
from examples.minimal_system.graph import stage_graph
from examples.minimal_system.metrics import METRICS

DESCRIPTION = "Translate from one source language or from two"
PAPER = (
    "Zoph and Knight (2016): Multi-Source Neural Translation. NAACL 2016, https://arxiv.org/abs/1601.00710"
)

__all__ = ["DESCRIPTION", "METRICS", "PAPER", "Config", "stage_graph"]
