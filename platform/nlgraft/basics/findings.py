"""What `nlgraft verify` finds wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        place: ``store``, ``Optuna`` or ``MLflow``.
        what: What is wrong, and with which trial.
        remedy: What to do next.
    """

    place: str
    what: str
    remedy: str


RUN_AGAIN = "`nlgraft run` of this study completes it"
