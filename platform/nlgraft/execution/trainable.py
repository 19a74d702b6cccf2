"""What runs inside a Tune trial: one trial of the study, its reports and its end.

The actor is reused from trial to trial, so a trial costs no process start.
"""

from __future__ import annotations

import base64
import json
import logging
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import tune

from nlgraft.errors import StageBusy, TrialFailed
from nlgraft.execution.scheduling import STEP, VALUE
from nlgraft.execution.tune_searcher import METRICS, OUTCOME, OWNER, STAGE, UNIX_MS
from nlgraft.execution.worker_group import WorkerGroup
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import RecordingReporter, run_trial

_log = logging.getLogger(__name__)

_REPORT_PAUSE_S = 1.0


@dataclass(frozen=True)
class Order:
    """All that a worker must know of a trial; travels as text inside the Tune config.

    Attributes:
        graph: The trial's stage graph.
        config: The resolved config, for the record.
        store_uri: Where the artifact store is.
        trial_id: Tune's id of the trial, under which the board keeps a request to stop.
        group: Shape of the worker group; one worker trains in this process.
        watched_stage: Name of the stage whose reports the trial scheduler judges.
        watched_metric: The metric that it judges, or None without a scheduler.
    """

    graph: StageGraph
    config: Mapping[str, Any]
    store_uri: str
    trial_id: str
    group: WorkerGroup
    watched_stage: str
    watched_metric: str | None

    def to_text(self) -> str:
        """Encode for a Tune config, which holds plain values only."""
        return base64.b64encode(pickle.dumps(self)).decode("ascii")

    @staticmethod
    def from_text(text: str) -> Order:
        """Decode what ``to_text`` made, in a worker of the same sweep."""
        order = pickle.loads(base64.b64decode(text))
        assert isinstance(order, Order)
        return order


@ray.remote(num_cpus=0)
class Board:
    """Requests to stop, readable by every trial of a sweep."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def request_stop(self, trial_id: str, reason: str) -> None:
        """Ask a trial to end itself."""
        self._reasons[trial_id] = reason

    def stop_reason(self, trial_id: str) -> str | None:
        """Why a trial should end, or None."""
        return self._reasons.get(trial_id)


class TuneReporter:
    """Reports to Tune, which answers through the board.

    ``tune.report`` returns only after the trial scheduler has decided, so a request to stop is visible to the
    very next question.
    """

    def __init__(self, order: Order, board: Any) -> None:
        self._order = order
        self._board = board
        self._last_report_s = -_REPORT_PAUSE_S

    def report(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Send a report; mere progress is sent at most once a second."""
        watched = self._order.watched_metric
        is_judged = watched is not None and stage == self._order.watched_stage and watched in metrics
        now_s = time.monotonic()
        has_dev = any(name.startswith("dev/") for name in metrics)
        if not is_judged and not has_dev and now_s - self._last_report_s < _REPORT_PAUSE_S:
            return
        self._last_report_s = now_s
        result: dict[str, Any] = {
            STAGE: stage,
            STEP: step,
            METRICS: json.dumps(
                {name: float(value) for name, value in metrics.items()}
            ),  # Tune flattens dicts
            UNIX_MS: int(time.time() * 1000),
        }
        if is_judged and watched is not None:
            result[VALUE] = float(metrics[watched])
        tune.report(result)

    def should_stop(self) -> str | None:
        """Ask the board."""
        return ray.get(self._board.stop_reason.remote(self._order.trial_id))


def run_order(config: dict[str, Any], board: Any) -> None:
    """Run one trial of the study as a Tune trial.

    Args:
        config: ``{"order": text}``.
        board: Handle of the sweep's board.
    """
    order = Order.from_text(config["order"])
    # recorded here, where worker groups report to: a stage that does not finish leaves no curves of its own
    reporter = RecordingReporter(TuneReporter(order, board))
    store = ArtifactStore.open(order.store_uri)
    group = order.group
    group.limit_threads()

    def distribute(stage: Stage) -> None:
        from nlgraft.execution.workers import run_on_workers

        run_on_workers(stage, order.store_uri, group, reporter)

    try:
        run_trial(
            order.graph,
            store,
            reporter=reporter,
            config=dict(order.config),
            is_waiting=False,
            distribute=distribute if group.num_workers > 1 else None,
            device=group.device,
        )
    except StageBusy as busy:
        tune.report({OUTCOME: "busy", OWNER: busy.owner})
        return
    except TrialFailed as failed:
        _log.warning(
            "%s: %s", order.trial_id, failed
        )  # the record in the store says the same to everybody else
    tune.report({OUTCOME: "ended"})
