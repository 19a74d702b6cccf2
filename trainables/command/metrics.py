"""Metrics of a script: those that its study declares, and the time that its commands took."""

from __future__ import annotations

from nlgraft.study.data.system import Metric

METRICS = {
    "command_s": Metric(
        direction="minimize",
        unit="s",
        split=None,
        is_time=True,
        description="Time of the commands that write metrics.",
    ),
}
"""Metrics by name; `Config.declared_by` adds those of a study."""
