"""From a cell to the system's config, and from values that the system refuses back to the study file."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from nlgraft.basics.errors import Problem, StudyError
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.data import paths
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import REPLICATE_SPLITS, System, parts_of
from nlgraft.study.reading.draft import Fault, faults_of, take_out
from nlgraft.study.reading.system_import import system_of
from nlgraft.text.files import looking_below

_MAX_REPAIRS = 5
_PATH = re.compile(r"([\w-]+(?:\.[\w-]+)+): ")


@dataclass(frozen=True)
class Resolver:
    """Resolves the cells of one study.

    Attributes:
        system: The study's system.
        base: Nested values that all cells share.
        data: The ``data`` field.
        skipped: Config paths to leave unset, because the config is known to lack them.
        directory: Start of relative paths to input files; None leaves them as written.
    """

    system: System
    base: Mapping[str, Any]
    data: Mapping[str, Any]
    skipped: Collection[str] = ()
    directory: str | None = None

    def resolve(self, cell: Cell, params: Mapping[str, Any]) -> tuple[BaseModel | None, list[Problem]]:
        """Build the config of a cell with searched values, or find its problems in the study file."""
        config, faults = self.faults(cell, params)
        return config, [self.place(fault, cell, params) for fault in faults]

    def faults(self, cell: Cell, params: Mapping[str, Any]) -> tuple[BaseModel | None, list[Fault]]:
        """Build the config of a cell with searched values, or find its faults, with paths in the config."""
        overrides = {path: value for path, value in cell.overrides.items() if path not in self.skipped}
        params = {path: value for path, value in params.items() if path not in self.skipped}
        try:
            values = nested_config(self.base, self.data, overrides, params)
        except ValueError as error:
            return None, [Fault((), str(error))]
        all_faults: list[Fault] = []
        for _ in range(_MAX_REPAIRS):
            try:
                config = self.system.validate(values, self.directory)
                return (None if all_faults else config), all_faults
            except ValidationError as error:
                faults = faults_of(error, self.system.config_type, values)
            placed = {fault.parts for fault in all_faults}
            all_faults += [fault for fault in faults if fault.parts not in placed]
            unknown = [fault for fault in faults if fault.is_unknown_key]
            if not unknown:
                break
            # An unknown key hides the rules over several fields, which run last: look for those without it.
            for fault in unknown:
                take_out(values, fault.parts)
        has_rules = any(not fault.parts for fault in all_faults)
        context = {"directory": self.directory}
        hidden = [] if has_rules else hidden_problems(self.system.config_type, values, context)
        return None, [*all_faults, *(Fault((), problem) for problem in hidden)]

    def file_faults(self, cell: Cell, directory: str | None) -> list[Fault]:
        """Find the files that a cell's config names and that cannot be used, whatever else is wrong with it.

        Args:
            cell: The cell.
            directory: Start of relative paths.
        """
        try:
            values = nested_config(self.base, self.data, cell.overrides, {})
        except ValueError:  # a path that leads nowhere, which is told otherwise
            return []
        problems = self.system.file_problems(values, directory)
        return [Fault(tuple(problem.path.split(".")), problem.message) for problem in problems]

    def place(
        self,
        fault: Fault,
        cell: Cell,
        params: Mapping[str, Any],
    ) -> Problem:
        """Find the origin of a fault in the study file.

        The problem is placed at the search space, the level, the data or the base that set the value; a rule
        over several values is placed at the one that the cell changed.
        """
        path = fault.path
        inside = f" (in cell {cell.label!r})" if not cell.is_baseline else ""
        for param in params:
            # A searched value is put in last, so it is the one that was refused.
            if paths.overlap(param, path):
                return Problem(f"search.space.{param}", fault.message + inside)
        setters = [setter for setter in cell.overrides if paths.contains(setter, path)]
        if setters:
            # The most specific override set the value; one of a whole part was replaced by it.
            setter = max(setters, key=len)
            inner = path[len(setter) :]
            return Problem(cell.origins.get(setter, setter) + inner, fault.message)
        for setter in cell.changed:
            if paths.contains(path, setter):
                return Problem(cell.origins.get(setter, setter), fault.message + inside)
        if paths.contains("data", path):
            return Problem(path, fault.message)
        if path:
            return Problem(f"base.{path}", fault.message)
        # The sentence of a rule may begin with the path of the part at fault.
        begin = _PATH.match(fault.message)
        if begin is None or paths.get(self.base, begin[1]) is paths.MISSING:
            return Problem("base", fault.message)
        return Problem(f"base.{begin[1]}", fault.message[begin.end() :])


def nested_config(
    base: Mapping[str, Any],
    data: Mapping[str, Any],
    overrides: Mapping[str, Any],
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Put together the values of a config; the result shares nothing with the arguments.

    Args:
        base: Nested values that all cells share.
        data: The ``data`` field.
        overrides: Values that the cell sets, by dotted path.
        params: Values that the search proposes, by dotted path.

    Raises:
        ValueError: A path leads through a value without parts.
    """
    values = copy.deepcopy({**base, "data": {**data}})
    for path, value in (*overrides.items(), *params.items()):
        paths.put(values, path, copy.deepcopy(value))
    return values


def resolve_config(
    study: Study,
    cell: Cell,
    params: Mapping[str, Any] | None = None,
    *,
    has_absolute_paths: bool = True,
) -> BaseModel:
    """Build the config of a cell's trial.

    Args:
        study: The study.
        cell: One of its cells.
        params: Searched values by dotted path.
        has_absolute_paths: If true, relative paths to input files are resolved against the study file;
            otherwise they stay as written.

    Raises:
        StudyError: The system refuses the values; problems carry their paths in the study file.
    """
    directory = study.directory if has_absolute_paths else None
    resolver = Resolver(system_of(study), study.base, study.data, directory=directory)
    with looking_below(study.mirror):
        config, problems = resolver.resolve(cell, params or {})
    if config is None:
        raise StudyError(problems, f"{study.name}, cell {cell.label}")
    return config


@dataclass(frozen=True)
class ResolvedCell:
    """A cell's config, with one choice of searched values, and the system that makes trials of it."""

    cell: Cell
    params: Mapping[str, Any]
    config: BaseModel
    system: System
    mirror: Path | None

    @cached_property
    def document(self) -> dict[str, Any]:
        """The config as JSON values."""
        return self.config.model_dump(mode="json")

    def trial(
        self,
        seed: int,
        splits: tuple[str, ...] = REPLICATE_SPLITS,
        number: int | None = None,
    ) -> SweepTrial:
        """Build the trial with this seed, scored on these splits; of a search, that of a proposal."""
        return SweepTrial(
            cell=self.cell,
            seed=seed,
            config=self.document,
            graph=self.graph(seed, splits),
            params=self.params,
            number=number,
        )

    def graph(self, seed: int, splits: tuple[str, ...] = REPLICATE_SPLITS) -> StageGraph:
        """Build the stage graph of the trial with this seed, scored on these splits."""
        with looking_below(self.mirror):
            # Fingerprints of its stages include the digests of input files.
            return self.system.stage_graph(self.config, seed=seed, splits=splits)


def resolve_cell(
    study: Study,
    cell: Cell,
    params: Mapping[str, Any] | None = None,
) -> ResolvedCell:
    """Build the config of a cell, to make trials of; arguments and errors as in `resolve_config`."""
    config = resolve_config(study, cell, params)
    return ResolvedCell(cell, dict(params or {}), config, system_of(study), study.mirror)


# Rules over several settings that pydantic does not reach, since one of these settings is refused.


def hidden_problems(
    model: type[BaseModel],
    values: Mapping[str, Any],
    context: dict[str, Any],
) -> list[str]:
    """Apply a system's own rules to a config of which some values are refused.

    Refused values count as their defaults; messages about them are left out, as they may be due to that.

    Args:
        model: The system's config; it has rules if it has ``_problems``, as `StrictConfig`.
        values: Values of which pydantic refuses some.
        context: Context of the validation.

    Returns:
        Sentences of rules; none where the config cannot be put together.
    """
    refused: set[str] = set()
    problems: list[str] = []
    # A rule that relies on a refused value may raise anything; those before it stay.
    with suppress(Exception):
        config = _build_without_rules(model, values, "", context, refused)
        problems.extend(getattr(config, "_problems", tuple)())
    mentions = [re.compile(rf"(?<![\w.]){re.escape(path)}(?!\w)") for path in refused]
    return [problem for problem in problems if not any(path.search(problem) for path in mentions)]


def _build_without_rules(
    model: type[BaseModel],
    values: Mapping[str, Any],
    path: str,
    context: dict[str, Any],
    refused: set[str],
    *,
    has_default: bool = False,
) -> BaseModel:
    """Build the part at a path, and add the paths of refused values to ``refused``.

    A part that its own rules refuse counts as refused, too, since rules over several parts would repeat what
    is wrong with it; one without a default is built without its rules, as is the whole config.

    Raises:
        Exception: The part's own rules refuse it or fail on refused values, and it has a default.
    """
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if name not in values:
            fields[name] = field.get_default(call_default_factory=True)
            continue
        try:
            kind: Any = Annotated[field.annotation, field]
            adapter = TypeAdapter[Any](kind)
            fields[name] = adapter.validate_json(canonical_json(values[name]), strict=True, context=context)
        except ValidationError:
            where, parts = paths.join(path, name), [*parts_of(field.annotation)]
            if get_origin(field.annotation) is dict and isinstance(values[name], Mapping):
                entries = [*parts_of(get_args(field.annotation)[1])]
                if len(entries) == 1:
                    fields[name] = {
                        key: _build_without_rules(entries[0], entry, paths.join(where, key), context, refused)
                        for key, entry in values[name].items()
                        if isinstance(entry, Mapping)
                    }
            elif len(parts) == 1 and isinstance(values[name], Mapping):
                with suppress(Exception):
                    fields[name] = _build_without_rules(
                        parts[0], values[name], where, context, refused, has_default=not field.is_required()
                    )
            if name not in fields:
                refused.add(where)
                fields[name] = field.get_default(call_default_factory=True)
    accepted = {
        name: fields[name] for name in values if name in fields and paths.join(path, name) not in refused
    }
    try:
        # Validated again as a whole, since defaults may depend on the values given.
        return model.model_validate(accepted, context=context)
    except Exception:  # a rule that relies on a refused value may raise anything
        if has_default:
            raise
        return model.model_construct(**fields)
