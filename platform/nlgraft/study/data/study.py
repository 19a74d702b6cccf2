"""The study: a question as typed, frozen data.

`Study` holds the values of a study file after scales, overrides and environment variables are put in.
`nlgraft.study.public` adds reading and planning to it.
"""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, PrivateAttr, Tag, WithJsonSchema

from nlgraft.basics.wording import count, without_credentials
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.study.data.part import Duration, Name, Part
from nlgraft.study.data.space import Domain

# What one trial, and all trials of a study, may hold of a cluster.


class WorkerRange(Part):
    """A number of workers that follows what the cluster has."""

    min: int = Field(ge=1)
    """A trial waits until it can have so many."""
    max: int = Field(ge=1)
    """It takes no more."""


class Resources(Part):
    """Resources of one trial."""

    workers: Annotated[int, Field(ge=1)] | WorkerRange = 1
    """Processes that train one trial together; or ``{min: 1, max: 4}``: as many of them as there is room for,
    fewer when a node is lost, more when one joins. Results do not depend on their number."""
    cpus_per_worker: int = Field(default=1, ge=1)
    """CPU cores of a worker."""
    gpus_per_worker: float = Field(default=0.0, ge=0)
    """GPUs of a worker; a fraction shares one GPU between trials of one worker."""
    gpu_memory: float | None = Field(default=None, gt=0)
    """Memory of a GPU in GB, by which `plan` refuses what does not fit; none: it says what trainings take."""
    sharding: Literal["none", "full"] = "none"
    """full: parameters, gradients and optimiser state of a training are divided over its workers, for models
    that are too large for one GPU; none: each worker has all of them. Results do not depend on it."""
    max_concurrent: int | None = Field(default=None, ge=1)
    """Most trials at once; none: as many as fit."""
    max_cpus: int | None = Field(default=None, ge=1)
    """Most CPUs that all trials hold at once, so that others find room on a shared cluster; none: all."""
    max_gpus: float | None = Field(default=None, gt=0)
    """The same for GPUs."""
    max_failures: int = Field(default=2, ge=0)
    """Number of times that a trial is tried again after the loss of its worker. Losses of a whole node, as of
    a spot machine, are counted apart; a trial survives fifty of them."""

    @property
    def min_workers(self) -> int:
        """Fewest processes that train one trial."""
        if isinstance(self.workers, WorkerRange):
            return self.workers.min
        return self.workers

    @property
    def max_workers(self) -> int:
        """Most processes that train one trial."""
        if isinstance(self.workers, WorkerRange):
            return self.workers.max
        return self.workers

    @property
    def workers_text(self) -> str:
        """The number of workers of a trial, for people: ``1 to 4 workers``."""
        is_range = self.min_workers < self.max_workers
        return (f"{self.min_workers} to " if is_range else "") + count(self.max_workers, "worker")

    @property
    def per_trial(self) -> dict[str, float]:
        """Most resources that one trial holds while it runs, by Ray's names."""
        return self.of_workers(self.max_workers)

    def of_workers(self, number: int) -> dict[str, float]:
        """Resources of so many workers, by Ray's names."""
        return {"CPU": float(number * self.cpus_per_worker), "GPU": number * self.gpus_per_worker}

    @property
    def caps(self) -> dict[str, float]:
        """Most that all trials of the study hold at once, by Ray's names; a name left out has no limit."""
        caps = {"CPU": self.max_cpus, "GPU": self.max_gpus}
        return {kind: float(cap) for kind, cap in caps.items() if cap is not None}


# A paper's findings as a study file states them: columns of published tables, and orderings of cells.


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


OneOrMore = Annotated[
    list[str],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class Column(Part):
    """The published figures of one metric."""

    source: str = Field(min_length=1)
    """Paper, if it is not the study's, and table or figure, e.g. ``Table 2, Laws``."""
    metric: str
    """A metric of the system, e.g. ``test/bleu``."""
    signature: str | None = None
    """How the paper computed the metric, e.g. ``case:mixed|tok:13a``; its figures are printed beside ours
    only where the signatures agree."""
    data: dict[str, JsonValue] = Field(default={})
    """The data on which they were obtained: values of the study's ``data`` by dotted path, ``*`` for any part
    of a text, e.g. ``downstream.test.target: "*/thesis/test.zh"``. On other data verdicts say so, without
    figures."""
    values: dict[str, float] = Field(min_length=1)
    """Figure by cell: ``patt_eg``, ``arm=patt_eg, sides=both``, ``without segment_embedding``."""


class Statement(Part):
    """A claim as written: ``better`` and ``worse``.

    It stands for one claim per worse cell and per column of ``published`` that has figures of its cells. With
    a ``source`` it is an ordering without figures, and ``metric`` is needed. With a ``margin`` it says that
    ``better`` is no worse by more than that; with ``exceeds`` it compares two gains; with ``worse_metric``
    two metrics, of one cell too.
    """

    better: str | None = None
    """The cell that the paper found better."""
    worse: OneOrMore = Field(default=[])
    """The cell that the paper found worse; several in a list."""
    margin: float | None = Field(default=None, gt=0)
    """Difference that does not matter, in the metric's unit: ``better`` may be this much worse."""
    exceeds: list[str] | None = Field(default=None, min_length=2, max_length=2)
    """Two cells: the gain of ``better`` over ``worse`` exceeds the gain of the first over the second."""
    metric: OneOrMore = Field(default=[])
    """The metrics it is about; left out for all columns that have its cells."""
    worse_metric: str | None = None
    """The metric of ``worse`` where it is another, of the same kind as ``metric``; needs a ``source``."""
    source: str | None = Field(default=None, min_length=1)
    """Place in the paper of an ordering without figures."""
    data: dict[str, JsonValue] = Field(default={})
    """The data of an ordering without figures, as in ``published``."""

    @property
    def comparisons(self) -> list[tuple[str, ...]]:
        """The cells of each claim: better, worse and those it exceeds."""
        if self.better is None:
            return []
        return [(self.better, worse, *(self.exceeds or ())) for worse in self.worse]


# The overrides of a study, which make it a variant with a name of its own.


NOT_IN_VARIANT = frozenset({"name", "description", "resources", "budget", "storage", "tracking"})
"""Fields whose overrides change neither what is computed nor what is reported."""

_DIGEST_CHARS = 8


@dataclass(frozen=True)
class Overrides:
    """The overrides with which a study was read, as far as they change its results.

    Attributes:
        scales: Names of the scales, in the order given.
        values: Values by path in the study file.
    """

    scales: tuple[str, ...] = ()
    values: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The overrides as the command line takes them, without credentials."""
        pairs = [
            f"{path.removeprefix('base.')}={value if isinstance(value, str) else json.dumps(value)}"
            for path, value in self.values.items()
        ]
        return [f"@{scale}" for scale in self.scales] + [without_credentials(pair) for pair in pairs]

    def variant_of(self, name: str) -> str:
        """Name the variant: study, scales and a digest of the values, e.g. ``demo@tiny-1f0c6a2e``."""
        # A digest, since values may be longer than a file name.
        parts = ["@".join(self.scales)] if self.scales else []
        parts += [fingerprint(dict(self.values))[:_DIGEST_CHARS]] if self.values else []
        return f"{name}@{'-'.join(parts)}" if parts else name


class Sequential(Part):
    """Planned looks at the results; cells that are decided, or are unlikely to be, get no more seeds."""

    kind: Literal["looks"] = "looks"
    """Looks at numbers of seeds that are planned."""
    looks: list[Annotated[int, Field(ge=2)]] = Field(min_length=1)
    """Ascending numbers of seeds at which the results are tested; a run takes those up to the number of
    ``seeds``, and ``run --next-look`` one more at a time."""


SCHEMA_VERSION = 1
"""The newest study format this package reads."""

NOT_IN_FINGERPRINT = frozenset(
    {
        "name",
        "description",
        "resources",
        "storage",
        "tracking",
        "published",
        "claims",
        "analysis",
        "scales",
        "budget",
        "sequential",
    }
)
"""Fields that change where a study runs, for how long or how it is reported, not what is computed."""

_SEED_LIMIT = 2**32
_FEWEST_TESTED = 2
Seed = Annotated[int, Field(ge=0, le=_SEED_LIMIT - 1)]


def _levels_kind(value: Any) -> str:
    # By their shape, so that a mistake is explained for the form that was written and not for both.
    return "named" if isinstance(value, dict) else "values"


class Factor(Part):
    """A variable of the ablation.

    Either ``target`` and a list of levels (values of that one path), or named levels, each a set of values.
    """

    target: str | None = Field(default=None, min_length=1)
    """Dotted path into the system's config; left out with named levels."""
    levels: Annotated[
        Annotated[list[JsonValue], Tag("values")] | Annotated[dict[Name, dict[str, JsonValue]], Tag("named")],
        Discriminator(_levels_kind),
    ]
    """Values of the target, or ``{level name: {dotted path: value}}``."""
    baseline: JsonValue
    """The reference level."""

    @property
    def is_named(self) -> bool:
        """True when the levels have names."""
        return isinstance(self.levels, dict)

    @property
    def level_values(self) -> list[JsonValue]:
        """The levels in file order: the values, or the names of named levels."""
        return list(self.levels)


class Component(Part):
    """A part of the system that is left out once to measure its contribution."""

    without: dict[str, JsonValue] = Field(min_length=1)
    """Values, by dotted path or nested, that remove the component."""


class Idle(Part):
    """A declaration that a factor has no effect at some levels of others."""

    factor: str
    """The factor or component without effect."""
    when: dict[str, JsonValue] = Field(min_length=1)
    """``{factor: level}`` or ``{factor: [level, level]}``: the levels at which it has none."""


class Design(Part):
    """Combinations of levels that become cells."""

    kind: Literal["one_factor", "leave_one_out", "full", "cells"] = "one_factor"
    """``one_factor`` and ``leave_one_out``: the baseline and every single departure from it; ``full``: every
    combination; ``cells``: the baseline and those listed."""
    cells: list[dict[str, JsonValue]] = Field(default=[])
    """With kind ``cells``: ``{factor: level}``; factors not named stay at their baseline."""
    idle: list[Idle] = Field(default=[])
    """With kind ``full``: combinations that are one cell, because a factor has no effect there."""


class Sampler(Part):
    """Sampler that proposes parameters."""

    name: Literal["tpe", "gp", "random", "grid"] = "tpe"
    """Optuna's sampler."""
    seed: Seed = 0
    """Seed of the proposals; 0 is a seed like any other."""
    num_startup_trials: int | None = Field(default=None, ge=1)
    """For ``tpe`` and ``gp``: ended trials of a cell before which it samples at random; none: ten, as in
    Optuna. A search has to be longer for the model to be used."""

    @property
    def is_blind(self) -> bool:
        """True if results change no proposal."""
        return self.name in ("random", "grid")

    @property
    def num_drawn(self) -> int:
        """Trials that TPE or GP draws at random."""
        return self.num_startup_trials or 10


class TrialScheduler(Part):
    """Rule that stops unpromising trials early."""

    name: Literal["asha", "none"] = "asha"
    """Name of the rule; ``none`` stops nothing."""
    metric: str | None = None
    """Metric that is compared at equal steps; training must report it. None: the objective's."""
    grace_steps: int = Field(default=1, ge=1)
    """No trial is stopped before this many optimiser steps."""
    reduction_factor: int = Field(default=3, ge=2)
    """One in this many trials survives a rung."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps of a complete trial; none: what the trials report."""


class Search(Part):
    """A search with the same budget inside every cell."""

    sampler: Sampler = Sampler()
    """Sampler that proposes parameters."""
    trial_scheduler: TrialScheduler | None = None
    """Rule that stops trials early; none: all trials run to their end."""
    space: dict[str, Domain] = Field(min_length=1)
    """Domains by dotted path into the system's config."""
    start: list[dict[str, JsonValue]] = Field(default=[], exclude_if=operator.not_)
    """Values by path that are tried first in each cell, in this order; what one leaves out is sampled."""
    trials: int = Field(ge=1)
    """Trials in each cell."""

    @property
    def active_scheduler(self) -> TrialScheduler | None:
        """Return the rule that stops trials early, None without one."""
        spec = self.trial_scheduler
        return None if spec is None or spec.name == "none" else spec


class Objective(Part):
    """Metric by which the search selects, and which the report puts first."""

    metric: str
    """A metric of the system, not one of the test set."""
    direction: Literal["maximize", "minimize"]
    """Must agree with the metric's own."""

    @property
    def sign(self) -> float:
        """Factor by which more is better: 1.0, or -1.0."""
        return 1.0 if self.direction == "maximize" else -1.0


class Budget(Part):
    """Limits after which a run starts no more trials."""

    wall_clock: Duration | None = None
    """Longest time a run may last: seconds, or ``2h30m``."""
    gpu_hours: float | None = Field(default=None, gt=0)
    """Most hours of GPUs that the study's trials may hold, ended ones of earlier runs included."""
    cpu_hours: float | None = Field(default=None, gt=0)
    """The same for CPU cores."""
    trials: int | None = Field(default=None, ge=1)
    """Most trials a run may start."""
    max_failed_fraction: float = Field(default=1.0, ge=0, le=1)
    """Stop when more than this share of the trials ended so far has failed."""


class Storage(Part):
    """Store of artifacts and records."""

    path: str = Field(default="nlgraft_store", min_length=1)
    """Local directory or URI of an object store (``s3://``, ``gs://``, ``az://``)."""


class Tracking(Part):
    """Place of the study in MLflow."""

    uri: str | None = Field(default=None, min_length=1)
    """MLflow tracking URI; none: a SQLite file next to the store."""
    experiment: str | None = Field(default=None, min_length=1)
    """MLflow experiment; none: the study's name."""


class Analysis(Part):
    """Statistics that compare cells."""

    samples: int = Field(default=1000, ge=100)
    """Fewest resamples of each test and interval; a large family gets more."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Significance level; intervals cover 1 - alpha."""
    family: Literal["all_cells", "claims"] = "all_cells"
    """Comparisons that are corrected together: every cell against the baseline, or the claims' own."""
    margin: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Differences too small to matter, by metric: a difference that is certainly smaller is *equal*."""
    gains_over: str | None = None
    """Factor, such as the bitext's size, at each of whose levels the others' gains are reported."""
    prior: Literal["store", "none"] = "store"
    """What else tells the noise between seeds: the store's earlier studies that are alike, without any those
    that nlgraft publishes; or nothing."""


class Study(Part):
    """A question: system, data, factors, search, budget and seeds."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    """Format of the file."""
    name: Name
    """Name of the study, and of its MLflow experiment."""
    description: str = ""
    """The question in a sentence."""
    system: str
    """Import path of the system, e.g. ``trainables.multi_source``."""
    data: dict[str, JsonValue] = Field(default={})
    """The ``data`` field of the system's config."""
    base: dict[str, JsonValue] = Field(default={})
    """Values of the system's config that all cells share, nested or by dotted path."""
    factors: dict[Name, Factor] = Field(default={})
    """Variables of the ablation."""
    components: dict[Name, Component] = Field(default={})
    """Parts of the system that are left out once."""
    design: Design = Design()
    """Which combinations become cells."""
    exclude: list[dict[str, JsonValue]] = Field(default=[])
    """``{factor: level}``: cells that have all of these are dropped."""
    search: Search | None = None
    """Search inside every cell; none: nothing is tuned."""
    objective: Objective
    """Metric by which the search selects, and which the report puts first."""
    seeds: list[Seed] = Field(min_length=1)
    """One replicate of every cell per seed. The same seed means the same batches in every cell if the budget
    of the training is in characters or sentences, or the vocabulary the same."""
    sequential: Sequential | None = None
    """Looks after which decided cells stop; none: every cell gets every seed, and one
    look decides."""
    resources: Resources = Resources()
    """Resources of one trial."""
    budget: Budget = Budget()
    """Limits after which a run starts no more trials."""
    storage: Storage = Storage()
    """Store of artifacts and records."""
    tracking: Tracking = Tracking()
    """Place of the study in MLflow."""
    published: list[Column] = Field(default=[])
    """The paper's figures."""
    claims: list[Statement] = Field(default=[])
    """The paper's findings, which the report answers."""
    analysis: Analysis = Analysis()
    """Statistics that compare cells."""
    scales: dict[Name, dict[str, JsonValue]] = Field(default={})
    """Named override sets: ``@tiny`` on the command line merges ``scales.tiny`` into the study."""
    # No fields: a study that moves with its data, or has its overrides written in, is the same study.
    _directory: str | None = PrivateAttr(default=None)
    _mirror: Path | None = PrivateAttr(default=None)
    _overrides: Overrides = PrivateAttr(default=Overrides())

    @property
    def directory(self) -> str | None:
        """Directory where relative paths in the study start; None for the working directory."""
        return self._directory

    @property
    def mirror(self) -> Path | None:
        """Folder with input files by the paths that they had elsewhere, to be read instead of those."""
        return self._mirror

    @property
    def overrides(self) -> list[str]:
        """Scales and values that were put in when the study was read, as the command line takes them."""
        return self._overrides.texts

    @property
    def variant(self) -> str:
        """Name of the study with its overrides, e.g. ``demo@tiny-1f0c6a2e``; without any, its name.

        Reports, MLflow and ``nlgraft status`` go by it.
        """
        return self._overrides.variant_of(self.name)

    def __eq__(self, other: object) -> bool:
        """Compare fields only: the same study read from another place is the same study."""
        return isinstance(other, Study) and self.to_dict() == other.to_dict()

    @property
    def main_metrics(self) -> list[str]:
        """The objective's metric, after its counterpart on the test set."""
        return [f"test/{self.objective.metric.removeprefix('dev/')}", self.objective.metric]

    @cached_property
    def fingerprint(self) -> str:
        """Digest of what is computed: all fields but those of `NOT_IN_FINGERPRINT`."""
        definition = self.model_dump(mode="json", exclude=set(NOT_IN_FINGERPRINT))
        # A list, as when a study could have several: stores find their studies by this digest.
        definition["objective"] = [definition["objective"]]
        return fingerprint(definition)

    @property
    def first_seeds(self) -> int:
        """Number of seeds that every cell gets, whatever the results."""
        if self.sequential:
            return min(self.sequential.looks[0], len(self.seeds))
        return len(self.seeds)

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """Numbers of seeds at which results are tested: those planned, or all seeds, twice and four times."""
        if self.sequential is not None:
            return tuple(self.sequential.looks)
        # One seed has no spread that a difference could be tested against.
        num = max(len(self.seeds), _FEWEST_TESTED)
        return (num, 2 * num, 4 * num)

    @cached_property
    def look_seeds(self) -> tuple[int, ...]:
        """The seeds of all looks, in their order: the study's, then the next higher numbers."""
        # Higher numbers first, then from 0 on: seeds end at 2**32.
        following = (seed % _SEED_LIMIT for seed in itertools.count(max(self.seeds) + 1))
        further = (seed for seed in following if seed not in self.seeds)
        num_further = max(0, self.looks[-1] - len(self.seeds))
        return (*self.seeds, *itertools.islice(further, num_further))

    def budget_hours(self, trial_s: float) -> dict[str, tuple[float, float]]:
        """What trials hold in so much time, in hours, and its limit, of resources that the budget limits."""
        limits = {"CPU": self.budget.cpu_hours, "GPU": self.budget.gpu_hours}
        held = self.resources.per_trial
        return {
            kind: (trial_s * held[kind] / 3600, limit) for kind, limit in limits.items() if limit is not None
        }

    def to_dict(self) -> dict[str, Any]:
        """Turn the study into JSON values, defaults included."""
        return self.model_dump(mode="json")
