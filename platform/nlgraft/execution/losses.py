"""Losses of processes that compute a trial: with their node, which is a preemption, or alone, a failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nlgraft.basics.wording import count
from nlgraft.execution.cluster_watch import answers

MAX_PREEMPTIONS = 50
"""How often a trial survives the loss of a node; bounded, since the trial may be what brings them down."""

PROCESS_DIED = "the worker process died: out of memory, a crash in native code, or the trial left Python"


@dataclass
class Losses:
    """Counts the losses of one trial.

    A process that died on a node which is still there counts as crashed, or killed for want of memory: Ray
    cannot tell who sent a SIGKILL.

    Attributes:
        max_failures: How many failures a trial survives.
        num_failures: Processes lost alone.
        num_preemptions: Nodes lost or about to be taken away.
    """

    max_failures: int
    num_failures: int = 0
    num_preemptions: int = 0

    def add(self, *, is_preemption: bool) -> None:
        """Count a loss."""
        if is_preemption:
            self.num_preemptions += 1
        else:
            self.num_failures += 1

    @property
    def number(self) -> int:
        """Losses of both kinds."""
        return self.num_failures + self.num_preemptions

    @property
    def reason_to_end(self) -> str | None:
        """Why the trial is not tried again; None if it is."""
        if self.num_failures > self.max_failures:
            lost = count(self.num_failures, "time")
            return f"a worker was lost {lost}, resources.max_failures allows {self.max_failures}"
        if self.num_preemptions > MAX_PREEMPTIONS:
            return f"its nodes were lost {count(self.num_preemptions, 'time')}, {MAX_PREEMPTIONS} are allowed"
        return None


def is_any_lost(nodes: Iterable[str]) -> bool:
    """Tell if one of these nodes, given by Ray's ids, is not there any more.

    Ray takes up to half a minute to notice, and its worker is lost at once: each raylet is asked as well.
    """
    import ray  # not above: the driver of a completed study need not load it

    alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    places = {name: (node["NodeManagerAddress"], node["NodeManagerPort"]) for name, node in alive.items()}
    return not all(node in places and answers(places[node]) for node in set(nodes))
