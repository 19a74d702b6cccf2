"""Stages, stage graphs and the context of a running stage.

A trial is the last stage of a graph. A stage is one cached step: a name, a version, the slice of the config
it reads, its inputs and its seed; together they make its fingerprint, under which its artifact is stored.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from nlgraft.basics.errors import ContractError, NlgraftError, nearest
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.fingerprint import plain_fingerprint, plain_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RUN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class KillReason(str):
    """Reason to stop a trial from outside, e.g. because its driver is gone: the trial counts as killed.

    A trial that stops for a plain reason has ended; one that was killed is run again.
    """


class TrialStopped(NlgraftError):
    """A stage ended because it was asked to stop; no failure.

    Args:
        reason: Who asked and why, in one line.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Work:
    """Size of a training, from which its time is estimated before any like it has run.

    Attributes:
        num_steps: Maximum number of optimiser steps; None if the number of batches decides.
        tokens_per_step: Approximate number of tokens in the batches of a step.
        num_parameters: Parameters used per token; None if the stage's inputs determine them.
    """

    num_steps: int | None
    tokens_per_step: int
    num_parameters: int | None


StageWorkers = Literal["none", "first", "share", "train"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One cached step of a trial.

    Two stages are equal when their fingerprints are.

    Attributes:
        name: Its name in the store and in reports; letters, digits, ``_``, ``.``, ``-``.
        run: ``package.module:function``, imported only in the process that runs it. Not hashed: moved code
            computes the same, and a change of what it computes raises ``version``.
        version: Raised by the author whenever the same config would give another artifact.
        config: The slice of the config it reads, data digests included.
        inputs: Stages whose artifacts it reads, by the name of the input.
        seed: Seed of its random numbers; None if it draws none.
        workers: Which of a trial's several workers compute it: ``none``, but the trial's own process, without
            a GPU; the ``first``; all, each its ``share`` of an evaluation; or all, who ``train``. Not hashed.
        locations: Paths of its data; ``config`` has their content, e.g. the digests of the files. Not hashed:
            data that moved are the same data.
        work: Size of what it trains, for estimates of time; None if it trains nothing. Not hashed.
        keeps: What makes it large or slow: the weights of a model that it does not train, or an encoder's
            states of each token of its input ``encoded``, or their means; for estimates. Not hashed.
        check: ``package.module:function`` that looks at the data of all stages that name it before anything
            runs, see `nlgraft.study.planning.planner`; None if there is nothing to look at. Not hashed.
    """

    name: str
    run: str
    version: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Stage] = field(default_factory=dict)
    seed: int | None = None
    workers: StageWorkers = "none"
    locations: Mapping[str, Any] = field(default_factory=dict)
    work: Work | None = None
    keeps: Literal["weights", "states", "means"] | None = None
    check: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ContractError(f"stage name {self.name!r}: use letters, digits, '_', '.', '-' only")
        for key, path in (("run", self.run), ("check", self.check)):
            if path is not None and not _RUN.fullmatch(path):
                raise ContractError(
                    f"stage {self.name}: {key}={path!r} is not of the form 'package.module:function'"
                )
        if type(self.version) is not int or self.version < 1:
            raise ContractError(f"stage {self.name}: version={self.version!r}; allowed: whole numbers from 1")
        if self.seed is not None and type(self.seed) is not int:
            raise ContractError(f"stage {self.name}: seed={self.seed!r}; allowed: a whole number or None")
        for key, upstream in self.inputs.items():
            if type(key) is not str or not isinstance(upstream, Stage):
                raise ContractError(
                    f"stage {self.name}: input {key!r} is a {type(upstream).__name__}, not a Stage"
                )
        for part in ("config", "locations"):
            try:
                # A copy of its own, since the builder of the stage may change its dict later.
                object.__setattr__(self, part, plain_json(getattr(self, part)))
            except ContractError as error:
                raise ContractError(f"stage {self.name}: {part}: {error}") from error
        object.__setattr__(self, "inputs", dict(self.inputs))

    @property
    def is_training(self) -> bool:
        """True if it trains a model."""
        return self.workers == "train"

    @property
    def num_steps(self) -> int | None:
        """Maximum number of optimiser steps; None if it takes none, or if the number of batches decides."""
        return None if self.work is None else self.work.num_steps

    @cached_property
    def size(self) -> Work:
        """Its work, with the parameters of the largest model below where it has none of its own."""
        work = self.work or Work(None, 0, None)
        below = max((stage.size.num_parameters or 0 for stage in self.inputs.values()), default=0)
        return replace(work, num_parameters=work.num_parameters or below or None)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of name, version, config, inputs' fingerprints and seed."""
        return plain_fingerprint(
            {
                "name": self.name,
                "version": self.version,
                "config": self.config,
                "inputs": {key: upstream.fingerprint for key, upstream in self.inputs.items()},
                "seed": self.seed,
            }
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stage) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Stage({self.name!r}, {self.fingerprint[:12]})"


class StageGraph:
    """A result stage and everything that it depends on.

    Args:
        result: The last stage; its artifact is the trial's result.

    Attributes:
        stages: Every distinct fingerprint once, inputs before what reads them, the result last.
    """

    def __init__(self, result: Stage) -> None:
        self.result = result
        self.stages = _topological(result)
        self._depths: dict[str, int] = {}
        for stage in self.stages:
            above = [self._depths[upstream.fingerprint] for upstream in stage.inputs.values()]
            self._depths[stage.fingerprint] = 1 + max(above, default=0)

    @property
    def fingerprint(self) -> str:
        """The result's fingerprint: the identity of the trial."""
        return self.result.fingerprint

    def depth(self, stage: Stage) -> int:
        """Length of the longest chain of inputs that ends in a stage of this graph; 1 for one without."""
        return self._depths[stage.fingerprint]

    def find(self, name: str) -> Stage:
        """Return the only stage of a name.

        Raises:
            ContractError: No stage, or more than one, has this name.
        """
        matches = [stage for stage in self.stages if stage.name == name]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ContractError(
                f"{len(matches)} stages are named {name!r} in the graph of {self.result.name}"
            )
        names = sorted({stage.name for stage in self.stages})
        raise ContractError(f"no stage {name!r} in the graph of {self.result.name}. {nearest(name, names)}")

    def __repr__(self) -> str:
        return f"StageGraph({self.result.name!r}, {len(self.stages)} stages, {self.fingerprint[:12]})"


def _topological(result: Stage) -> list[Stage]:
    ordered: dict[str, Stage] = {}
    # Not recursive, since a chain of stages may be longer than Python's stack. A fingerprint needs those of
    # the inputs, so the walk is keyed by object until a stage's inputs are done.
    visited: set[int] = set()
    stack = [(result, False)]
    while stack:
        stage, has_inputs_done = stack.pop()
        if id(stage) in visited:
            continue
        if not has_inputs_done:
            stack.append((stage, True))
            stack.extend((stage.inputs[key], False) for key in sorted(stage.inputs, reverse=True))
            continue
        visited.add(id(stage))
        first_stage = ordered.setdefault(stage.fingerprint, stage)
        if (first_stage.run, first_stage.workers) != (stage.run, stage.workers):
            raise ContractError(
                f"two stages {stage.name!r} share the fingerprint {stage.fingerprint[:12]} but differ in how "
                f"they run: {first_stage.run} and {stage.run}. Give them different names"
            )
    return list(ordered.values())


class Reporter(Protocol):
    """Receiver of a running stage's progress, which may also ask the stage to stop.

    **Failure**: neither method may raise because a tracking server is away; training must not stop for it.
    """

    def report(
        self,
        stage: str,
        step: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Receive metrics at a step of a stage."""
        ...

    def should_stop(self) -> str | None:
        """Return the reason to stop in one line, or None to go on."""
        ...


class NullReporter:
    """A reporter that keeps nothing and never stops anything."""

    def report(
        self,
        stage: str,
        step: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Drop the metrics."""

    def should_stop(self) -> str | None:
        """Go on."""
        return None


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A process that computes a stage, alone or in a group.

    Attributes:
        rank: Its number in the worker group.
        world_size: Size of the worker group.
        device: ``cpu``, ``cuda`` or ``cuda:0``...
        is_sharded: Trainings divide parameters, gradients and optimiser state over the group.
    """

    rank: int = 0
    world_size: int = 1
    device: str = "cpu"
    is_sharded: bool = False


ALONE = Worker()


@dataclass(frozen=True, kw_only=True)
class StageContext(Worker):
    """The argument of a stage's function.

    Attributes:
        stage: The stage that runs.
        directory: Empty directory to write the artifact into. On a rank above 0 it is thrown away.
        inputs: Directories of the input artifacts, by input name; read only.
        checkpoints: Training state that outlives a crash of this stage.
        reporter: Receives progress.
    """

    stage: Stage
    directory: Path
    inputs: Mapping[str, Path] = field(default_factory=dict)
    checkpoints: Checkpoints
    reporter: Reporter = field(default_factory=NullReporter)

    @property
    def config(self) -> dict[str, Any]:
        """A copy of the slice of the config that the stage reads."""
        return copy.deepcopy(dict(self.stage.config))

    @property
    def locations(self) -> dict[str, Any]:
        """A copy of the paths of the stage's data."""
        return copy.deepcopy(dict(self.stage.locations))

    @property
    def seed(self) -> int:
        """The stage's seed.

        Raises:
            ContractError: It has none.
        """
        if self.stage.seed is None:
            raise ContractError(
                f"stage {self.stage.name} draws at random but has no seed; give its Stage one"
            )
        return self.stage.seed

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report metrics of this stage, e.g. ``dev/loss``, after a number of optimiser steps.

        Without metrics it says how many lines of text have been read.
        """
        self.reporter.report(self.stage.name, step, metrics)

    def should_stop(self) -> str | None:
        """Return the reason to stop early in one line, or None to go on."""
        return self.reporter.should_stop()
