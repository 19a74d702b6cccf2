"""A plan: the trials and stages of a run, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import NormalDist
from typing import Any, Literal

from pydantic import BaseModel

from nlgraft.basics.errors import Problem
from nlgraft.basics.wording import duration, size
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study


@dataclass(frozen=True)
class PlannedTrial:
    """A replicate that a run will finish.

    Attributes:
        cell: Its cell.
        seed: Its seed.
        params: Searched values by dotted path; empty before a search has found them.
        config: The resolved config.
        graph: Its stage graph.
    """

    cell: Cell
    seed: int
    params: Mapping[str, Any]
    config: BaseModel = field(repr=False)
    graph: StageGraph

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the trial: that of its last stage."""
        return self.graph.fingerprint


@dataclass(frozen=True, kw_only=True)
class SweepTrial:
    """One trial that a sweep has to complete.

    Attributes:
        kind: ``search`` trials are scored on dev only, ``replicate`` trials on dev and test.
        params: Searched values by dotted path; empty without a search.
        number: Number of the proposal within its cell; None for replicates.
        config: The resolved config of the system, as JSON values.
    """

    kind: Literal["search", "replicate"]
    cell: Cell
    seed: int
    config: Mapping[str, Any] = field(repr=False)
    graph: StageGraph
    params: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None

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
        num_nodes: Number of nodes for which a training step is modelled; None without such a model.
        step_times: The measured times to which the model is fitted.
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
    is_cost_measured: bool
    is_cost_scaled: bool = False
    num_nodes: int | None = None
    step_times: Sequence[StepTime] = ()

    @property
    def num_trials(self) -> int:
        """Replicates and search trials."""
        return len(self.trials) + self.num_search_trials

    def facts(self) -> list[tuple[str, str]]:
        """Return name and value of each number of the plan, for people."""
        planned = self.stages["planned"]
        distinct = self.stages["distinct"]
        search = f", {self.num_search_trials} of them search" if self.num_search_trials else ""
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
        if self.disk_bytes is not None:
            rows.append((f"disk, {basis}", size(self.disk_bytes)))
        for step in self.step_times:
            rows.append((f"step of {step.name}, {self.num_nodes} nodes", step.describe(self.num_nodes or 1)))
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
            "disk_bytes": self.disk_bytes,
            "is_cost_measured": self.is_cost_measured,
            "is_cost_scaled": self.is_cost_scaled,
            "step_times": [step.to_json(self.num_nodes or 1) for step in self.step_times],
        }


# A model of the time of a training step on several workers.
#
# With N workers, one on each node, a step takes
#
#     c / N  +  2 (N - 1) / N · r  +  E(N) · s
#
# c is the computation on the batch, which the workers divide evenly. r is the time in which the gradients
# cross one line: a ring sends 2 (N - 1) / N of them from each worker, the least that is possible (Patarasuk
# and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations). s is the standard
# deviation of a worker's time: all wait for the slowest, which is E(N) deviations above the mean, the
# expected maximum of N normal draws.
#
# c is what one worker took. s is fitted to what two took beyond c / 2 + r, with E(2) = 1 / sqrt(pi).


BYTES_PER_WEIGHT = 4
BITS_PER_S = 10e9
ASSUMPTIONS = (
    "one worker on each node, the same batch divided evenly",
    f"a ring all-reduce of {BYTES_PER_WEIGHT} bytes of each weight over {BITS_PER_S / 1e9:g} Gbit/s, which "
    "no computation hides",
    "what two workers took beyond half of one's time and that all-reduce is waiting for the slower, whose "
    "time is normal with the same deviation on every number of nodes",
    "a stage's mean time in this store, with evaluation and start, spread over the most steps it may take",
)


@dataclass(frozen=True)
class StepTime:
    """The times to which the model of one training is fitted.

    Attributes:
        name: Name of the stage.
        one_s: Seconds of a step on one worker, measured.
        two_s: On two, measured; None if that was never timed: then no waiting is modelled.
        line_s: Seconds in which the gradients cross one line.
    """

    name: str
    one_s: float
    two_s: float | None
    line_s: float

    def parts(self, num_workers: int) -> dict[str, float]:
        """Return the seconds of a step by what they are spent on."""
        waiting_s = 0.0
        if self.two_s is not None:
            excess_s = max(0.0, self.two_s - self.one_s / 2 - self.line_s)
            waiting_s = excess_s * expected_maximum(num_workers) / expected_maximum(2)
        return {
            "compute": self.one_s / num_workers,
            "all-reduce": 2 * (num_workers - 1) / num_workers * self.line_s,
            "waiting": waiting_s,
        }

    def describe(self, num_workers: int) -> str:
        """Write the model in one line for people."""
        parts = self.parts(num_workers)
        total_s = sum(parts.values())
        named = ", ".join(f"{seconds:.3g} {name}" for name, seconds in parts.items())
        on_two = "not timed with two workers" if self.two_s is None else f"{self.two_s:.3g} s with two"
        speed = f"{self.one_s / total_s:.2g} times as fast" if total_s else "no time"
        return f"{total_s:.3g} s ({named}), {speed}; measured: {self.one_s:.3g} s with one worker, {on_two}"

    def to_json(self, num_workers: int) -> dict[str, object]:
        """Turn measured and modelled seconds into JSON values."""
        return {**vars(self), "num_workers": num_workers, "parts_s": self.parts(num_workers)}


def expected_maximum(num_draws: int) -> float:
    """Compute the expected maximum of standard normal draws: the integral of x n phi(x) Phi(x)^(n - 1)."""
    normal, width = NormalDist(), 1 / 128
    points = (index * width for index in range(-1024, 1025))
    return width * sum(x * num_draws * normal.pdf(x) * normal.cdf(x) ** (num_draws - 1) for x in points)
