"""A plan: what a run would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from nlgraft.errors import Problem
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study


@dataclass(frozen=True)
class PlannedTrial:
    """A replicate that a run will see finished.

    Attributes:
        cell: Its cell.
        seed: Its seed.
        params: Searched values by dotted path; empty where a search has yet to find them.
        config: The resolved config.
        graph: Its stage graph.
    """

    cell: Cell
    seed: int
    params: Mapping[str, Any]
    config: BaseModel
    graph: StageGraph

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the trial: that of its last stage."""
        return self.graph.fingerprint


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Attributes:
        study: The study.
        cells: Its cells, the baseline first.
        trials: The replicates: every cell with every seed.
        num_search_trials: Trials of the search in all cells together.
        stages: ``planned``: stages of all trials added up; ``distinct``: how many differ; ``finished``: how
            many of those the store has.
        max_concurrent: Trials at once; None when the cluster is not known.
        problems: What can never fit the cluster.
        warnings: What is allowed yet likely to disappoint.
        notes: How far the numbers are estimates.
        corpora: Counts of each split by the name of the corpus, of text in local files.
        cost_s: Worker time of what is not finished, by what such stages have taken; None when unknown.
        disk_bytes: Size of what is not finished, by what such artifacts have taken; None when unknown.
    """

    study: Study
    cells: list[Cell]
    trials: list[PlannedTrial]
    num_search_trials: int
    stages: dict[str, int]
    max_concurrent: int | None
    problems: list[Problem]
    warnings: list[str]
    notes: list[str]
    corpora: Mapping[str, Any]
    cost_s: float | None
    disk_bytes: float | None

    @property
    def num_trials(self) -> int:
        """Replicates and search trials."""
        return len(self.trials) + self.num_search_trials

    def to_json(self) -> dict[str, Any]:
        """Turn the plan into JSON values.

        Returns:
            What ``plan --json`` prints.
        """
        return {
            "study": self.study.name,
            "fingerprint": self.study.fingerprint,
            "cells": len(self.cells),
            "trials": self.num_trials,
            "search_trials": self.num_search_trials,
            "seeds": len(self.study.seeds),
            "stages": dict(self.stages),
            "max_concurrent": self.max_concurrent,
            "problems": [{"path": problem.path, "message": problem.message} for problem in self.problems],
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "corpora": dict(self.corpora),
            "cost_s": self.cost_s,
            "disk_bytes": self.disk_bytes,
        }
