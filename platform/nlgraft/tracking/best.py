"""Which trial of a study is the best: the one whose model is offered for serving."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from nlgraft.tracking.entries import BestModel, TrialLike
from nlgraft.tracking.trial_files import find_model

if TYPE_CHECKING:
    from nlgraft.pipeline.store import ArtifactStore
    from nlgraft.pipeline.trial_record import TrialRecord
    from nlgraft.study.data.study import Objective


class BestTrial:
    """Keeps the best finished replicate; of two equals the one told first.

    Args:
        objective: What is compared, on dev: the test set selects nothing.
    """

    def __init__(self, objective: Objective) -> None:
        self._metric = objective.metric
        self._sign = 1.0 if objective.direction == "maximize" else -1.0
        self._value = -math.inf
        self.model: BestModel | None = None

    def consider(self, trial: TrialLike, record: TrialRecord, store: ArtifactStore) -> None:
        """Look at a trial that has ended.

        Args:
            trial: The trial.
            record: How it ended.
            store: Where its artifacts are.
        """
        if trial.kind != "replicate" or record.state != "finished":
            return
        value = self._sign * record.metrics.get(self._metric, math.nan)
        if value > self._value:
            self._value = value
            self.model = BestModel(trial.fingerprint, partial(find_model, trial.graph, store))
