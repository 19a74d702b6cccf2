"""The best trial of a study: its model is logged for serving."""

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
    """The finished replicate with the best objective on dev; the first of two equal ones."""

    def __init__(self, objective: Objective) -> None:
        self._metric = objective.metric
        self._sign = 1.0 if objective.direction == "maximize" else -1.0
        self._value = -math.inf
        self.model: BestModel | None = None

    def consider(self, trial: TrialLike, record: TrialRecord, store: ArtifactStore) -> None:
        """Compare a trial that has ended with the best so far."""
        if trial.kind != "replicate" or record.state != "finished":
            return
        value = self._sign * record.metrics.get(self._metric, math.nan)
        if value > self._value:
            self._value = value
            self.model = BestModel(trial.fingerprint, partial(find_model, trial.graph, store))
