"""Which of the studies on a Ray cluster goes first, by their priorities.

The board of each sweep is an actor whose name says the priority; its driver tells it what trials wait for. It
ends with its driver, so nothing is left behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

NAMESPACE = "nlgraft"
_ANSWER_S = 5.0


def board_name(priority: int, study: str) -> str:
    """Return a new name for the board of a study's sweep."""
    # Ray frees the name of an actor some time after its driver: a study that is run again must not meet it.
    return f"{priority}/{uuid.uuid4().hex}/{study}"


def lacking(shape: Mapping[str, float], free: Mapping[str, float]) -> list[str]:
    """Name the resources that keep workers of a shape from their place.

    Args:
        shape: Resources of a worker.
        free: Those of the cluster that nothing holds.
    """
    wanted = {kind: amount for kind, amount in shape.items() if amount}
    # If there is enough of all, no single node has it: any may be the one that is missing.
    return [kind for kind, amount in wanted.items() if free.get(kind, 0.0) < amount] or [*wanted]


def study_ahead(priority: int, shape: Mapping[str, float]) -> str | None:
    """Name a study of higher priority that waits for what trials of this shape hold, None without one."""
    import ray
    from ray.exceptions import RayError
    from ray.util import list_named_actors

    found: Any = list_named_actors(all_namespaces=True)
    for name in (actor["name"] for actor in found if actor["namespace"] == NAMESPACE):
        its_priority, _, study = name.split("/", 2)
        if int(its_priority) <= priority:
            continue
        try:
            board: Any = ray.get_actor(name, NAMESPACE)
            kinds: Any = ray.get(board.awaited.remote(), timeout=_ANSWER_S)
        except (RayError, ValueError):  # it has ended meanwhile
            continue
        if any(shape.get(kind) for kind in kinds):
            return study
    return None
