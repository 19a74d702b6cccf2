"""Removal of training state that no trial will resume, left by trials that a trial scheduler has stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nlgraft.basics.errors import StageBusy
from nlgraft.execution.events import TrialEnded
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore

_log = logging.getLogger(__name__)


def prune_checkpoints(store: ArtifactStore, ended: Iterable[TrialEnded]) -> int:
    """Remove the checkpoints of stopped search trials once all trials of a sweep have ended.

    A stopped proposal is on record and never runs again. The checkpoints of stages that a failed or killed
    trial shares are kept, since the next sweep runs that trial again, and so are those of stages that another
    sweep is computing. A stage that is wanted later after all is computed from its start.

    Args:
        ended: The end of each trial of the sweep that did not finish, those of earlier sweeps included.

    Returns:
        Number of stages whose checkpoints were removed.
    """
    stopped: dict[str, Stage] = {}
    wanted: set[str] = set()
    for event in ended:
        stages = {stage.fingerprint: stage for stage in event.trial.graph.stages}
        if event.trial.kind == "search" and event.record.state == "stopped":
            stopped |= stages
        elif event.record.state != "finished":
            wanted |= set(stages)
    num_removed = 0
    for fingerprint, stage in stopped.items():
        if fingerprint in wanted or store.checkpoints(stage).newest_step() is None:
            continue
        try:
            # Another sweep may be about to resume from them.
            with store.leases.acquire(fingerprint, "a sweep that prunes checkpoints"):
                store.checkpoints(stage).clear()
        except StageBusy:
            continue
        num_removed += 1
    if num_removed:
        _log.info("removed the checkpoints of %d stages of stopped trials", num_removed)
    return num_removed
