"""The needs of one trial against the capacity of a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nlgraft.errors import Problem
from nlgraft.study.data.study import Resources

_TOLERANCE = 1e-9
_FIELDS = {"CPU": "cpus_per_worker", "GPU": "gpus_per_worker"}


def capacity_problems(
    resources: Resources, capacity: Mapping[str, float], where: str = "the cluster"
) -> list[Problem]:
    """Find needs of a trial that the cluster can never meet, for which Ray itself would wait for ever.

    Args:
        resources: The needs of one trial.
        capacity: Capacity of the cluster, by Ray's resource names; a name left out counts as 0.
        where: Name of the cluster in messages.
    """
    problems = []
    for kind, amount in resources.per_trial.items():
        has = capacity.get(kind, 0.0)
        if amount > has + _TOLERANCE:
            field = _FIELDS[kind]
            each = getattr(resources, field)
            workers = f"{resources.workers} worker{'s' if resources.workers > 1 else ''}"
            message = (
                f"asks for {amount:g} {kind}s per trial ({workers} x {each:g}), {where} has {has:g}; "
                f"lower resources.workers or resources.{field}, or use a larger cluster"
            )
            problems.append(Problem(f"resources.{field}", message))
    return problems


def max_concurrent(resources: Resources, capacity: Mapping[str, float]) -> int:
    """Compute how many trials fit at once, no more than the study allows; 0 when not even one fits.

    Args:
        resources: The needs of one trial.
        capacity: Capacity of the cluster, by Ray's resource names.
    """
    counts = [
        _fit(amount, capacity.get(kind, 0.0)) for kind, amount in resources.per_trial.items() if amount > 0
    ]
    allowed = most_allowed(resources)
    return min(counts if allowed is None else [*counts, allowed])


def most_allowed(resources: Resources) -> int | None:
    """Compute how many trials at once the study allows on any cluster; None for any number."""
    needs = resources.per_trial
    caps = {kind: cap for kind, cap in resources.caps.items() if needs[kind] > 0}
    limits = [math.floor(cap / needs[kind] + _TOLERANCE) for kind, cap in caps.items()]
    limits += [] if resources.max_concurrent is None else [resources.max_concurrent]
    return min(limits, default=None)


def _fit(amount: float, has: float) -> int:
    if amount < 1:  # a fraction of a device lies on one device
        return math.floor(has + _TOLERANCE) * math.floor(1 / amount + _TOLERANCE)
    return math.floor(has / amount + _TOLERANCE)
