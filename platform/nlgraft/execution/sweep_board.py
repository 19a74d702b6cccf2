"""What processes share as actors; apart from what they run, so that no actor loads ray.tune or torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nlgraft.study.data.plan import SweepTrial

LEFT_OUT_S = 60.0
"""How long no trial is computed on a host whose disk is full."""


LEFT_OUT = "left out"


@dataclass(frozen=True)
class Outcome:
    """How a trial ended on its worker.

    Attributes:
        kind: ``ended``, and its record says how; ``busy``: another sweep computes a stage; ``killed`` from
            outside; ``lost`` with its process; `LEFT_OUT`: its host has a fault.
        reason: Why; of a busy one, who computes the stage.
    """

    kind: str
    reason: str = ""


@dataclass
class _Batch:
    """The trials that one Tune trial computes one after another.

    Attributes:
        specs: Those that have not ended, in order.
        is_begun: True if a worker was given the first of them.
        outcomes: How the others ended, in order.
        stop_reason: Why the one that is computed should end.
        node: The node that computes them; empty before they begin.
        lost_on: The nodes of the processes that were lost while they computed the current trial.
        is_waiting_for_workers: True while the current trial has a worker group without a worker.
    """

    specs: list[bytes]
    is_begun: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    stop_reason: str | None = None
    node: str = ""
    lost_on: list[str] = field(default_factory=list)
    is_waiting_for_workers: bool = False


class SweepBoard:
    """Trials that were handed to workers, how they ended and requests to stop, readable from every worker.

    A Tune trial computes a batch of trials: starting one costs Tune and Ray more than a short trial itself.
    Specs are no part of the Tune configs, since Tune keeps several copies of the config of every trial that
    it ran.
    """

    def __init__(self) -> None:
        self._batches: dict[str, _Batch] = {}
        self._left_out_until_s: dict[str, float] = {}

    def assign(self, batch_id: str, specs: list[bytes]) -> None:
        """Keep the specs of trials that are about to run."""
        self._batches[batch_id] = _Batch(list(specs))

    def begin(self, batch_id: str, node: str) -> tuple[bytes | None, list[str], bool]:
        """Begin a batch on a node, or go on with it if the process that computed it was lost.

        Returns:
            The spec of the trial to compute, or None; the nodes of the processes that were lost over it; and
            whether this node is left out.
        """
        batch = self._batches[batch_id]
        if batch.node:
            batch.lost_on.append(batch.node)
        batch.node = node
        return self._current(batch), batch.lost_on, self.is_left_out(batch_id)

    def note_preemption(self, batch_id: str) -> None:
        """Note that the process of a batch was told to end, which counts as the loss of its node."""
        batch = self._batches[batch_id]
        batch.lost_on.append("")  # no node has this id
        batch.node = ""

    def _current(self, batch: _Batch) -> bytes | None:
        batch.is_waiting_for_workers = False
        batch.is_begun = bool(batch.specs)
        return batch.specs[0] if batch.specs else None

    def note_waiting(self, batch_id: str, is_waiting_for_workers: bool) -> None:
        """Note whether the worker group of the current trial has no worker yet."""
        if batch_id in self._batches:
            self._batches[batch_id].is_waiting_for_workers = is_waiting_for_workers

    def num_waiting(self) -> int:
        """Count the trials whose process, or whose worker group, has not begun."""
        return sum(batch.is_waiting_for_workers or not batch.node for batch in self._batches.values())

    def advance(self, batch_id: str, outcome: Outcome) -> bytes | None:
        """Note how the current trial ended; return the spec of the next one, None if there is none."""
        batch = self._batches[batch_id]
        if outcome.kind == "ended":
            self._left_out_until_s.pop(batch.node, None)
        batch.outcomes.append(outcome)
        del batch.specs[0]
        batch.stop_reason = None
        batch.lost_on = []
        return self._current(batch)

    def leave_out(self, batch_id: str, is_new: bool) -> bool:
        """Leave the trials of a batch to others, and for a new fault its node out for a while.

        Returns False, and does nothing, where the fault has come back while nobody else computes.
        """
        batch = self._batches[batch_id]
        if is_new:
            num_begun = sum(running.is_begun for running in self._batches.values())
            if batch.node in self._left_out_until_s and num_begun == 1:
                return False
            self._left_out_until_s[batch.node] = time.monotonic() + LEFT_OUT_S
        batch.is_begun = False
        return True

    def is_left_out(self, batch_id: str) -> bool:
        """Tell if the node of a batch is left out, unless the batch should end."""
        batch = self._batches[batch_id]
        until_s = self._left_out_until_s.get(batch.node, 0.0)
        return batch.stop_reason is None and time.monotonic() < until_s

    def withdraw(self, batch_id: str) -> int:
        """Take back the trials of a batch that have not begun; return how many stay."""
        batch = self._batches[batch_id]
        del batch.specs[batch.is_begun :]
        return len(batch.outcomes) + len(batch.specs)

    def remove(self, batch_id: str) -> list[Outcome]:
        """Forget a batch that has ended; return how its trials ended, in order."""
        return self._batches.pop(batch_id).outcomes

    def request_stop(self, batch_id: str, reason: str) -> None:
        """Ask the current trial to end itself; for a `KillReason`, to be run again later."""
        if batch_id in self._batches:
            self._batches[batch_id].stop_reason = reason

    def stop_reason(self, batch_id: str) -> str | None:
        """Return why the current trial should end, or None."""
        batch = self._batches.get(batch_id)
        return None if batch is None else batch.stop_reason


class DriverBoard:
    """The driver's side of a sweep board, on the Ray cluster that this process is connected to.

    Args:
        encode: Turns a trial, and Tune's id of its batch, into the bytes that a worker reads. The board keeps
            them without importing what they describe.

    Attributes:
        actor: Handle of the board, for the workers.
    """

    def __init__(self, encode: Callable[[SweepTrial, str], bytes]) -> None:
        self._encode = encode
        # On the driver's own node: while the driver lives, trials must be able to reach the board.
        here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(SweepBoard)
        self.actor: Any = board.remote()

    def assign(self, batch_id: str, trials: Sequence[SweepTrial]) -> None:
        """Hand out trials that one worker computes one after another."""
        specs = [self._encode(trial, batch_id) for trial in trials]
        ray.get(self.actor.assign.remote(batch_id, specs))

    def withdraw(self, batch_id: str) -> int:
        """Take back the trials of a batch that have not begun; return how many stay."""
        return ray.get(self.actor.withdraw.remote(batch_id))

    def outcomes(self, batch_id: str) -> list[Outcome]:
        """Forget a batch; return how its trials ended, in order, and nothing if the board is lost."""
        try:
            return ray.get(self.actor.remove.remote(batch_id))
        except RayError:
            return []

    def request_stop(self, batch_id: str, reason: str) -> None:
        """Ask the trial of a batch that is computed to end itself."""
        ray.get(self.actor.request_stop.remote(batch_id, reason))

    def num_waiting(self) -> int:
        """Count the trials whose process, or whose worker group, has not begun."""
        return ray.get(self.actor.num_waiting.remote())

    def close(self) -> None:
        """End the board: Tune keeps its handle for as long as this process is connected to Ray."""
        with suppress(RayError):
            ray.kill(self.actor)


class Mailbox:
    """Messages between the workers of a group and the process that started it."""

    def __init__(self) -> None:
        self._members: dict[int, tuple[Any, str]] = {}
        self._reports: list[tuple[str, int, dict[str, float]]] = []
        self._stop_reason: str | None = None
        self._end: tuple[Exception, str] | None = None

    def join(
        self,
        rank: int,
        world_size: int,
        worker: Any,
        node: str,
    ) -> None:
        """Note a worker; it takes the place of that of an earlier group, perhaps a larger one."""
        members = {number: member for number, member in self._members.items() if number < world_size}
        self._members = members | {rank: (worker, node)}

    def workers(self) -> list[Any]:
        """List the workers."""
        return [worker for worker, _ in self._members.values()]

    def nodes(self) -> list[str]:
        """List the nodes of the workers, one for each."""
        return [node for _, node in self._members.values()]

    def post(
        self,
        stage: str,
        step: int,
        metrics: dict[str, float],
    ) -> None:
        """Keep a report of the first worker."""
        self._reports.append((stage, step, metrics))

    def drain(self) -> list[tuple[str, int, dict[str, float]]]:
        """Take the reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def request_stop(self, reason: str) -> None:
        """Ask all workers to stop."""
        self._stop_reason = reason

    def stop_reason(self) -> str | None:
        """Tell why they are to stop; None to go on."""
        return self._stop_reason

    def post_end(self, end: Exception, detail: str) -> None:
        """Note how a worker ended, and its traceback or node."""
        self._end = self._end or (end, detail)  # what others raise follows from the first

    def end(self) -> tuple[Exception, str] | None:
        """Tell how the group ended; None while it has not."""
        return self._end
