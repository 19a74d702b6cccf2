"""Run one trial's stage graph, sharing what exists."""

from __future__ import annotations

from nlgraft.pipeline.record import TrialRecord

__all__ = ["TrialRecord"]
