"""A system as the platform sees it: a typed config, its metrics and the stage graph of a trial."""

from __future__ import annotations

import copy
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from nlgraft.errors import ContractError, Problem, StudyError, nearest
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.data import paths
from nlgraft.study.reading.knobs import Knob, knobs

if TYPE_CHECKING:
    from nlgraft.study.data.design import Cell
    from nlgraft.study.data.study import Study

SEARCH_SPLITS = ("dev",)
"""Splits on which search trials are scored."""
REPLICATE_SPLITS = ("dev", "test")
"""Splits on which replicates are scored."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a metric of a system means.

    Attributes:
        direction: Which way is better.
        unit: Unit of the value, e.g. ``BLEU points``, ``nats``, ``s``.
        split: Split it is computed on; None for what no split has, such as a number of parameters.
        is_time: A time or speed, which differs from run to run.
        description: What it measures.
    """

    direction: Literal["maximize", "minimize"]
    unit: str
    split: Literal["dev", "test"] | None
    is_time: bool = False
    description: str = ""


@dataclass(frozen=True)
class System:
    """A published transfer method in runnable form.

    Attributes:
        name: Last part of the import path.
        path: Import path of its module.
        config_type: Its typed config; has a field ``data``.
        metrics: What its trials report, by name.
        description: What it is, in a sentence.
        paper: Where it was published.
        build: ``stage_graph`` of its module.
    """

    name: str
    path: str
    config_type: type[BaseModel]
    metrics: Mapping[str, Metric]
    description: str
    paper: str
    build: Callable[..., StageGraph]

    def stage_graph(self, config: BaseModel, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
        """Build the stage graph of a trial.

        Args:
            config: A config of this system.
            seed: Seed of the trial.
            splits: Splits to score on: `SEARCH_SPLITS` or `REPLICATE_SPLITS`.

        Returns:
            The graph; building it reads no model and trains nothing.

        Raises:
            ContractError: The system returned something else.
            DataError: A corpus is missing or unusable.
        """
        graph = self.build(config, seed=seed, splits=splits)
        if not isinstance(graph, StageGraph):
            raise ContractError(
                f"{self.path}.stage_graph returned a {type(graph).__name__}, not a StageGraph"
            )
        return graph

    def validate(self, values: Mapping[str, Any]) -> BaseModel:
        """Build the config from JSON values, exact about types.

        Args:
            values: Nested values.

        Returns:
            The config.

        Raises:
            ValidationError: pydantic's; the system refuses the values.
        """
        # JSON mode is strict where it counts (true is not 1, "1" is not 1) yet reads lists into tuples.
        return self.config_type.model_validate_json(canonical_json(values), strict=True)

    def knobs(self) -> list[Knob]:
        """List every setting of the config with type, default, range and meaning."""
        return knobs(self.config_type)


@lru_cache(maxsize=32)
def load_system(path: str) -> System:
    """Import a system.

    Args:
        path: Import path of its module, e.g. ``trainables.embedding_transfer``.

    Returns:
        The system.

    Raises:
        StudyError: There is no such module, or it cannot be imported.
        ContractError: The module does not keep the contract of a system.
    """
    if not all(part.isidentifier() for part in path.split(".")):
        message = f"{path!r} is no import path; write package.module, e.g. trainables.embedding_transfer"
        raise StudyError([Problem("system", message)])
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path + ".").startswith(error.name + "."):
            raise StudyError(
                [Problem("system", f"{path} needs the module {error.name!r}: {error}")]
            ) from error
        message = f"there is no module {path!r}. {nearest(path, _neighbours(path))}"
        raise StudyError([Problem("system", message)]) from error
    except ImportError as error:
        raise StudyError([Problem("system", f"{path} cannot be imported: {error}")]) from error
    return _check_contract(path, module)


def nested_config(
    base: Mapping[str, Any], data: Mapping[str, Any], overrides: Mapping[str, Any], params: Mapping[str, Any]
) -> dict[str, Any]:
    """Put together the values of a config.

    Args:
        base: Nested values that all cells share.
        data: The ``data`` field.
        overrides: What the cell sets, by dotted path.
        params: What the search proposes, by dotted path.

    Returns:
        Nested values, sharing nothing with the arguments.

    Raises:
        ValueError: A path leads through a value that has no parts.
    """
    values = copy.deepcopy({**base, "data": {**data}})
    for path, value in (*overrides.items(), *params.items()):
        paths.put(values, path, copy.deepcopy(value))
    return values


def resolve_config(study: Study, cell: Cell, params: Mapping[str, Any] | None = None) -> BaseModel:
    """Build the config of a cell's trial.

    Args:
        study: The study.
        cell: One of its cells.
        params: Searched values by dotted path.

    Returns:
        A config of the study's system.

    Raises:
        StudyError: The system refuses the values; problems carry their paths in the study file.
    """
    from nlgraft.study.reading.resolving import Resolver  # resolving builds on this module

    resolver = Resolver(load_system(study.system), study.base, study.data)
    config, problems = resolver.resolve(cell, params or {})
    if config is None:
        raise StudyError(problems, f"{study.name}, cell {cell.label}")
    return config


def _check_contract(path: str, module: ModuleType) -> System:
    faults = []
    config_type = getattr(module, "Config", None)
    if not (isinstance(config_type, type) and issubclass(config_type, BaseModel)):
        faults.append("Config must be a pydantic model")
    elif "data" not in config_type.model_fields:
        faults.append("Config must have a field 'data', which takes the study's data")
    elif config_type.model_config.get("extra") != "forbid":
        faults.append("Config must refuse unknown keys (extra='forbid')")
    metrics = getattr(module, "METRICS", None)
    is_typed = isinstance(metrics, Mapping) and all(isinstance(metric, Metric) for metric in metrics.values())
    if not metrics or not is_typed:
        faults.append("METRICS must map metric names to nlgraft.study.reading.system.Metric")
    if not callable(getattr(module, "stage_graph", None)):
        faults.append("stage_graph(config, *, seed, splits) must be a function")
    faults += [f"{name} must be text" for name in ("DESCRIPTION", "PAPER") if not _is_text(module, name)]
    if faults:
        raise ContractError(f"{path} is no system: {'; '.join(faults)}")
    assert isinstance(config_type, type)
    return System(
        path.rpartition(".")[2],
        path,
        config_type,
        dict(metrics or {}),
        module.DESCRIPTION,
        module.PAPER,
        module.stage_graph,
    )


def _is_text(module: ModuleType, name: str) -> bool:
    return isinstance(getattr(module, name, None), str)


def _neighbours(path: str) -> list[str]:
    """Import paths of the packages beside the one asked for, or of the systems that come with nlgraft."""
    for parent in (path.rpartition(".")[0], "trainables"):
        try:
            package = importlib.import_module(parent) if parent else None
        except ImportError:
            continue
        locations = getattr(package, "__path__", None)
        if locations is not None:
            return sorted(
                f"{parent}.{entry.name}" for entry in pkgutil.iter_modules(locations) if entry.ispkg
            )
    return []
