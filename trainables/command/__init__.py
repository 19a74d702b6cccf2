"""Any script as a system: a command line, files of metrics, and settings that the study declares."""

from __future__ import annotations

from trainables.command.config import Config
from trainables.command.graph import file_problems, keep_code, stage_graph
from trainables.command.metrics import METRICS

DESCRIPTION = "Run any script: a command line whose settings and metrics the study declares"
PAPER = "The script's own"
NO_MODEL = "what a script keeps lies below artifacts/STAGE in the store, as kept.tar"

__all__ = [
    "DESCRIPTION",
    "METRICS",
    "NO_MODEL",
    "PAPER",
    "Config",
    "file_problems",
    "keep_code",
    "stage_graph",
]
