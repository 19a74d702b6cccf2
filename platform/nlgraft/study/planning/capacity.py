"""The needs of one trial against the capacity of a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nlgraft.basics.errors import Problem
from nlgraft.basics.wording import count
from nlgraft.study.data.study import Resources

_TOLERANCE = 1e-9
_FIELDS = {"CPU": "cpus_per_worker", "GPU": "gpus_per_worker"}


def capacity_problems(
    resources: Resources, capacity: Mapping[str, float], where: str = "the cluster"
) -> list[Problem]:
    """Find needs of a trial that the cluster can never meet; Ray itself would wait for them forever.

    Args:
        resources: The needs of one trial.
        capacity: Capacity of the cluster, by Ray's resource names; a name left out counts as 0.
        where: Name of the cluster in messages.
    """
    problems = []
    # With a range of workers, a trial fits where the fewest do.
    least = resources.min_workers
    for kind, amount in resources.of_workers(least).items():
        available = capacity.get(kind, 0.0)
        if amount > available + _TOLERANCE:
            field = _FIELDS[kind]
            each = getattr(resources, field)
            workers = f"{'at least ' if least < resources.max_workers else ''}{count(least, 'worker')}"
            message = (
                f"asks for {amount:g} {kind}s per trial ({workers} x {each:g}), {where} has {available:g}; "
                f"lower resources.workers or resources.{field}, or use a larger cluster"
            )
            problems.append(Problem(f"resources.{field}", message))
    return problems


def max_concurrent(resources: Resources, capacity: Mapping[str, float]) -> int:
    """Compute how many trials fit at once, no more than the study allows; 0 when not even one fits.

    Of trials with a range of workers, all get the maximum but one, which takes the remaining workers if they
    are enough.

    Args:
        resources: The needs of one trial.
        capacity: Capacity of the cluster, by Ray's resource names.
    """
    number = num_fitting(resources.per_trial, capacity)
    if resources.min_workers < resources.max_workers:
        used = {kind: number * amount for kind, amount in resources.per_trial.items()}
        free = {kind: capacity.get(kind, 0.0) - amount for kind, amount in used.items()}
        number += min(1, num_fitting(resources.of_workers(resources.min_workers), free))
    allowed = max_allowed(resources)
    return number if allowed is None else min(number, allowed)


def num_fitting(needs: Mapping[str, float], capacity: Mapping[str, float]) -> int:
    """Count how often needs fit a capacity, both by Ray's resource names."""
    return min(_fit(amount, capacity.get(kind, 0.0)) for kind, amount in needs.items() if amount > 0)


def max_allowed(resources: Resources) -> int | None:
    """Compute how many trials at once the study allows on any cluster; None for any number."""
    needs = resources.per_trial
    # A cap on what a trial does not use limits nothing.
    caps = {kind: cap for kind, cap in resources.caps.items() if needs[kind] > 0}
    limits = [math.floor(cap / needs[kind] + _TOLERANCE) for kind, cap in caps.items()]
    if resources.max_concurrent is not None:
        limits.append(resources.max_concurrent)
    return min(limits, default=None)


def _fit(amount: float, available: float) -> int:
    if amount < 1:
        # Ray places a fraction on one device, so that remainders of several do not add up.
        return math.floor(available + _TOLERANCE) * math.floor(1 / amount + _TOLERANCE)
    return math.floor(available / amount + _TOLERANCE)
