"""Importing systems and checking that they keep the contract of trainables/README.md."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType

from pydantic import BaseModel

from nlgraft.basics.errors import Problem, StudyError, nearest
from nlgraft.basics.shipped import system_names
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import Metric, System, early_metrics
from nlgraft.study.reading.knobs import path_problem

_MOST_PARENTS = 50


@lru_cache(maxsize=32)
def load_system(path: str) -> System:
    """Import a system by the path of its module, e.g. ``trainables.embedding_transfer``.

    Raises:
        StudyError: There is no such module, it cannot be imported, or it does not keep the contract.
    """
    # Python imports parents first, each within its child's import: thousands of them end in RecursionError.
    if path.count(".") > _MOST_PARENTS or not all(part.isidentifier() for part in path.split(".")):
        message = f"{path!r} is no import path; write package.module, e.g. trainables.embedding_transfer"
        raise StudyError([Problem("system", message)], path)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        # The module is there and imports another one that is not.
        if error.name is None or not (path + ".").startswith(error.name + "."):
            raise StudyError(
                [Problem("system", f"{path} needs the module {error.name!r}: {error}")]
            ) from error
        message = f"there is no module {path!r}. {nearest(path, _neighbours(path))}"
        raise StudyError([Problem("system", message)], path) from error
    except ImportError as error:
        raise StudyError([Problem("system", f"{path} cannot be imported: {error}")]) from error
    return _check_contract(path, module)


def system_of(study: Study) -> System:
    """Import the system of a study, with the settings and metrics that the study declares.

    Raises:
        StudyError: As `load_system`.
    """
    return load_system(study.system).of_study(study.data, study.base)


def _check_contract(path: str, module: ModuleType) -> System:
    faults = []
    config_type = getattr(module, "Config", None)
    if not (isinstance(config_type, type) and issubclass(config_type, BaseModel)):
        faults.append("Config must be a pydantic model")
    elif "data" not in config_type.model_fields:
        faults.append("Config must have a field 'data', which takes the study's data")
    # Otherwise a misspelt setting would be ignored and its default trained.
    elif config_type.model_config.get("extra") != "forbid":
        faults.append("Config must refuse unknown keys (extra='forbid')")
    else:
        conditional = getattr(config_type, "READ_WHEN", {})
        setting_paths = set(conditional)
        for conditions in conditional.values():
            setting_paths = setting_paths.union(*conditions)
        problems = [path_problem(config_type, name) for name in sorted(setting_paths)]
        faults += [f"Config.READ_WHEN: {problem}" for problem in problems if problem is not None]
    metrics = getattr(module, "METRICS", None)
    is_typed = isinstance(metrics, Mapping) and all(isinstance(metric, Metric) for metric in metrics.values())
    if not metrics or not is_typed:
        faults.append("METRICS must map metric names to nlgraft.study.data.system.Metric")
    elif uncounted := {metric.counted_by for metric in metrics.values()} - {"", *metrics}:
        # Their comparisons would stay open for ever: nothing tells if the units are the same.
        counts = ", ".join(sorted(uncounted))
        faults.append(f"METRICS lacks {counts}, which its means are over: add it, or leave counted_by out")
    if not callable(getattr(module, "stage_graph", None)):
        faults.append("stage_graph(config, *, seed, splits) must be a function")
    faults += [
        f"{name} must be text"
        for name, default in {"DESCRIPTION": None, "PAPER": None, "NO_MODEL": ""}.items()
        if not isinstance(getattr(module, name, default), str)
    ]
    if faults:
        raise StudyError([Problem("system", f"{path} is no system: {'; '.join(faults)}")])
    assert isinstance(config_type, type)
    assert metrics is not None
    return System(
        path.rpartition(".")[2],
        path,
        config_type,
        {**metrics, **early_metrics(metrics)},
        module.DESCRIPTION,
        module.PAPER,
        module.stage_graph,
        getattr(module, "keep_code", None),
        getattr(module, "file_problems", System.file_problems),
        getattr(module, "NO_MODEL", ""),
    )


def _neighbours(path: str) -> list[str]:
    """Import paths of the packages beside a missing one, or of the systems that come with nlgraft."""
    parent = path.rpartition(".")[0]
    try:
        package = importlib.import_module(parent) if parent else None
    except ImportError:
        package = None
    locations = getattr(package, "__path__", [])
    beside = [f"{parent}.{entry.name}" for entry in pkgutil.iter_modules(locations) if entry.ispkg]
    return sorted(beside) or system_names()
