"""Run one stage in this process."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.integrity import remove_tree
from nlgraft.pipeline.stage import ALONE, Reporter, Stage, StageContext, Worker
from nlgraft.pipeline.stage_outputs import check_results
from nlgraft.pipeline.store import ArtifactDamaged, ArtifactStore

logger = logging.getLogger(__name__)


def execute_stage(
    stage: Stage,
    store: ArtifactStore,
    *,
    reporter: Reporter,
    worker: Worker = ALONE,
    inputs: Mapping[str, Path] | None = None,
    reason: str = "",
) -> None:
    """Run one stage in this process, even if its artifact exists, and publish its output.

    In a worker group every rank calls this; only rank 0 publishes, the output of others is dropped. Once the
    artifact is published the stage's checkpoints are cleared.

    Args:
        stage: The stage; its inputs are stored.
        store: The artifact store.
        reporter: Receives progress.
        worker: Rank of this process in the worker group, and its device.
        inputs: Directories of its inputs by name; None: they are fetched from the store.
        reason: Why it runs, for the manifest.

    Raises:
        ArtifactDamaged: An input is damaged; it has been removed, so that the next attempt makes it again.
        ContractError: ``stage.run`` names no function, or its output cannot be stored.
        FloatingPointError: A score is not a finite number.
        Exception: The stage's own error.
    """
    function = load_function(stage, stage.run)
    if inputs is None:
        inputs = {name: _fetch_or_discard(upstream, store) for name, upstream in stage.inputs.items()}
    scratch = store.new_scratch(stage)
    checkpoints = store.checkpoints(stage, is_writable=worker.rank == 0)
    context = StageContext(
        stage=stage,
        directory=scratch,
        inputs=dict(inputs),
        checkpoints=checkpoints,
        reporter=reporter,
        **asdict(worker),
    )
    started_at = time.time()
    started = time.perf_counter()
    try:
        with THREADS.of_stage(stage.fingerprint):
            function(context)
        if worker.rank == 0:
            # Before publishing: an artifact with a NaN score would be a cache hit from then on.
            check_results(scratch)
            duration_s = time.perf_counter() - started
            store.publish(
                stage,
                scratch,
                started_at=started_at,
                duration_s=duration_s,
                reason=reason,
                num_threads=THREADS.number(),
                num_workers=worker.world_size,
            )
            # Only now: until the artifact is published, they are all that a crash leaves.
            checkpoints.clear()
            logger.info("stage %s %s: stored after %.1f s", stage.name, stage.fingerprint[:12], duration_s)
    finally:
        remove_tree(scratch)


def load_function(stage: Stage, path: str) -> Callable[..., object]:
    """Import what a stage names as ``package.module:function``.

    Raises:
        ContractError: There is no such function.
    """
    module_name, _, name = path.partition(":")
    function = getattr(importlib.import_module(module_name), name, None)
    if not callable(function):
        raise ContractError(f"stage {stage.name}: {module_name} has no function {name!r}")
    return function


def _fetch_or_discard(stage: Stage, store: ArtifactStore) -> Path:
    try:
        return store.fetch(stage)
    except ArtifactDamaged:
        store.discard(stage)
        raise


# The threads that this process computes with: set here, and counted for the manifests of its stages.


class Threads:
    """Number of threads of PyTorch in this process.

    PyTorch keeps the number for each thread of Python, so the thread that computes has to set it.

    Attributes:
        stage: Fingerprint of the stage that is computed; empty between stages.
    """

    def __init__(self) -> None:
        self.stage = ""
        self._number: int | None = None

    def set(self, num_threads: int) -> None:
        """Compute with so many threads from now on.

        PyTorch is not imported for this: that takes seconds which a trial of stored stages need not pay.
        """
        os.environ["OMP_NUM_THREADS"] = str(num_threads)  # read when torch is imported
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(num_threads)
        self._number = num_threads

    @contextmanager
    def of_stage(self, fingerprint: str) -> Iterator[None]:
        """Say which stage is computed."""
        self.stage = fingerprint
        try:
            yield
        finally:
            self.stage = ""

    def number(self) -> int | None:
        """Return the number of threads; None if it is not known."""
        if self._number is not None:
            return self._number
        torch = sys.modules.get("torch")
        return None if torch is None else torch.get_num_threads()


THREADS = Threads()
