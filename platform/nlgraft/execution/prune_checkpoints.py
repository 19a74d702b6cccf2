"""Training state of trials that a trial scheduler has stopped: what nobody will resume is removed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nlgraft.errors import StageBusy
from nlgraft.execution.events import TrialEnded
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore

logger = logging.getLogger(__name__)


def remove_stopped_checkpoints(store: ArtifactStore, ended: Iterable[TrialEnded]) -> int:
    """Remove the checkpoints that stopped search trials have left, once all trials of a sweep have ended.

    A stopped proposal is on record and is not run again. Kept are the checkpoints of stages that a failed or
    killed trial shares, since the next sweep runs it again, and of stages that another sweep computes now.
    Should somebody want such a stage after all, it is computed from its beginning.

    Args:
        store: The artifact store.
        ended: How each trial of the sweep ended, those of earlier sweeps included.

    Returns:
        Number of stages whose checkpoints were removed.
    """
    stopped: dict[str, Stage] = {}
    wanted: set[str] = set()
    for event in ended:
        stages = {stage.fingerprint: stage for stage in event.unit.graph.stages}
        if event.unit.kind == "search" and event.record.state == "stopped":
            stopped |= stages
        elif event.record.state != "finished":
            wanted |= set(stages)
    num_removed = 0
    for fingerprint, stage in stopped.items():
        if fingerprint in wanted or store.checkpoints(stage).newest_step() is None:
            continue
        try:
            with store.leases.acquire(fingerprint, "clearing up after a stopped trial"):
                store.checkpoints(stage).clear()
        except StageBusy:
            continue
        num_removed += 1
    if num_removed:
        logger.info("removed the checkpoints of %d stages of stopped trials", num_removed)
    return num_removed
