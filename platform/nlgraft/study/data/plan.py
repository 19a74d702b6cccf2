"""A plan: the trials and stages of a run, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from nlgraft.basics.errors import Problem
from nlgraft.basics.wording import duration, hours_of_budget, size
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study

_START_S, _TRIAL_S = 30.0, 4.0
"""Time of Ray's start and of the report, and of a small trial's stages that train nothing."""


@dataclass(frozen=True, kw_only=True)
class SweepTrial:
    """One trial that a sweep has to complete.

    Attributes:
        params: Searched values by dotted path; empty without a search.
        number: Number of the proposal within its cell; None for replicates.
        config: The resolved config of the system, as JSON values.
    """

    cell: Cell
    seed: int
    config: Mapping[str, Any] = field(repr=False)
    graph: StageGraph
    params: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None

    @property
    def kind(self) -> Literal["search", "replicate"]:
        """``search`` trials are scored on dev only, ``replicate`` trials on dev and test."""
        return "replicate" if self.number is None else "search"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the trial: that of its last stage."""
        return self.graph.fingerprint

    @property
    def key(self) -> str:
        """Identity within one sweep; the fingerprint is none, since two cells may hold the same trial."""
        return f"{self.kind}/{self.cell.key}/{self.seed if self.number is None else self.number}"

    @property
    def name(self) -> str:
        """Name shown to people: cell and seed, or cell and number of the proposal."""
        tail = f"seed {self.seed}" if self.number is None else f"search {self.number}"
        return f"{self.cell.label}, {tail}"


@dataclass(frozen=True, repr=False)
class Plan:
    """The trials and stages of a run.

    Attributes:
        study: The study.
        cells: Its cells, the baseline first.
        trials: The replicates: every cell with every seed.
        num_search_trials: Trials of the search in all cells together.
        stages: ``planned``: stages of all trials added up; ``distinct``: number of different ones;
            ``finished``: number of those in the store.
        max_concurrent: Number of trials that run at once; None when the cluster is unknown.
        problems: Needs that the cluster can never meet.
        warnings: Settings that are allowed but probably not intended.
        notes: Remarks on merged combinations and on which numbers are estimates.
        corpora: Counts of each split by the name of the corpus, of text in local files and constructed text.
        cost_s: Worker time of unfinished stages; None when unknown.
        disk_bytes: Size of unfinished artifacts; None when unknown.
        is_cost_measured: True if both are measured on earlier stages, False if estimated from training sizes.
        is_cost_scaled: True if some of what is measured is that of stages of another size.
    """

    study: Study
    cells: list[Cell]
    trials: list[SweepTrial]
    num_search_trials: int
    stages: dict[str, int]
    max_concurrent: int | None
    problems: list[Problem]
    warnings: list[str]
    notes: list[str]
    corpora: Mapping[str, Any]
    cost_s: float | None
    disk_bytes: float | None
    is_cost_measured: bool
    is_cost_scaled: bool = False

    @property
    def num_trials(self) -> int:
        """Replicates and search trials."""
        return len(self.trials) + self.num_search_trials

    @property
    def run_s(self) -> float | None:
        """Estimate the time of the run, whose trials share the machine, in seconds; None when unknown."""
        if self.cost_s is None:
            return None
        return _START_S + (self.cost_s + _TRIAL_S * self.num_trials) / (self.max_concurrent or 1)

    def facts(self) -> list[tuple[str, str]]:
        """Return name and value of each number of the plan, for people."""
        planned = self.stages["planned"]
        distinct = self.stages["distinct"]
        search = f", {self.num_search_trials} of them search" if self.num_search_trials else ""
        # First, since a variant is easily taken for the study itself.
        rows = [("override", text) for text in self.study.overrides]
        rows += [
            ("cells", str(len(self.cells))),
            ("seeds", str(len(self.study.seeds))),
            ("trials", f"{self.num_trials}{search}"),
            ("stages planned", str(planned)),
            ("stages that differ", f"{distinct} ({planned - distinct} shared)"),
            ("stages finished", str(self.stages["finished"])),
        ]
        if self.max_concurrent is not None:
            resources = self.study.resources
            each = f", of {resources.workers_text} each" if resources.max_workers > 1 else ""
            rows.append(("trials at once", f"{self.max_concurrent}{each}"))
        measured = "scaled from earlier runs" if self.is_cost_scaled else "from earlier runs"
        basis = measured if self.is_cost_measured else "rough estimate"
        if self.cost_s is not None:
            rows.append((f"worker time, {basis}", duration(self.cost_s)))
            if self.cost_s and self.max_concurrent and self.run_s:
                rows.append((f"run, {basis}", duration(self.run_s)))
            if hours := self.study.budget_hours(self.cost_s):
                rows.append((f"budget, {basis}", hours_of_budget(hours)))
        if self.disk_bytes is not None:
            rows.append((f"disk, {basis}", size(self.disk_bytes)))
        return rows

    def __repr__(self) -> str:
        rows = "\n".join(f"  {name}: {value}" for name, value in self.facts())
        problems = "".join(f"\n  problem: {problem.path}: {problem.message}" for problem in self.problems)
        rows += problems + "".join(f"\n  warning: {line}" for line in self.warnings)
        following = "  next: nlgraft.launch(study) to run it; .trials; .to_json()"
        return f"Plan of {self.study.variant}\n{rows}\n{following}"

    def _repr_html_(self) -> str:
        """Show the plan as a table in a notebook."""
        rows = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in self.facts())
        return f"<table><caption>plan of {escape(self.study.variant)}</caption>{rows}</table>"

    def to_json(self) -> dict[str, Any]:
        """Turn the plan into the JSON values of ``plan --json``."""
        return {
            "study": self.study.variant,
            "overrides": self.study.overrides,
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
            "hours": None if self.cost_s is None else self.study.budget_hours(self.cost_s),
            "disk_bytes": self.disk_bytes,
            "is_cost_measured": self.is_cost_measured,
            "is_cost_scaled": self.is_cost_scaled,
        }
