"""Domains of a search: tuned paths, their values, and the conditions under which they are tuned."""

from __future__ import annotations

import graphlib
import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import Field, JsonValue

from nlgraft.basics.errors import Problem, nearest
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data import paths
from nlgraft.study.data.part import Part

# 0.3 / 0.1 is a little less than 3.
_STEP_TOLERANCE = 1e-9
_NumberT = TypeVar("_NumberT", int, float)


class _Domain(Part):
    when: dict[str, JsonValue] | None = None
    """Searched only where each of these paths (of the space or of the config) has this value, or one of these
    values when a list is given."""

    @abstractmethod
    def probes(self) -> dict[str, JsonValue]:
        """Values to try against the system's config, by their place in the domain."""

    @property
    @abstractmethod
    def num_values(self) -> float:
        """Number of values; infinite for a continuous range."""

    @abstractmethod
    def problems(self) -> Iterator[Problem]:
        """Everything that makes the domain unusable, with paths inside the domain."""

    @abstractmethod
    def __contains__(self, value: object) -> bool: ...


class _Range(_Domain, Generic[_NumberT]):
    low: _NumberT
    """Smallest value, inclusive."""
    high: _NumberT
    """Largest value, inclusive."""
    log: bool = False
    """Sample uniformly in the logarithm."""
    step: Any = None  # typed where a kind of range declares it
    """Distance between allowed values, counted from ``low``; not together with ``log``."""

    def probes(self) -> dict[str, JsonValue]:
        """Both ends."""
        return {"low": self.low, "high": self.high}

    @property
    def num_values(self) -> float:
        """Number of steps, or infinity without a step."""
        if self.step is None:
            return math.inf
        return math.floor((self.high - self.low) / self.step + _STEP_TOLERANCE) + 1

    def problems(self) -> Iterator[Problem]:
        """Empty ranges, impossible logarithms, steps that miss ``high``."""
        low, high, step = self.low, self.high, self.step
        if low == high:
            yield Problem("low", f"low and high are both {low}; a fixed value belongs in base")
        elif low > high:
            yield Problem("low", f"{low} is above high, which is {high}; low must be below high")
        if self.log and low <= 0:
            yield Problem("log", f"a logarithmic range needs low above 0, got {low}")
        if self.log and step != type(self).model_fields["step"].default:
            yield Problem("step", "a logarithmic range has no step; leave out log or step")
        # Of an empty range, which is refused above, no step could be right.
        if step is None or low >= high:
            return
        count = (high - low) / step
        if abs(count - round(count)) > _STEP_TOLERANCE * max(1.0, count):
            last = low + math.floor(count) * step
            message = (
                f"{step} does not lead from low {low} to high {high}; the last value reached is {last:g}"
            )
            yield Problem("step", message)


class FloatDomain(_Range[float]):
    """A range of real numbers."""

    type: Literal["float"]
    """Kind of domain."""
    step: float | None = Field(default=None, gt=0)

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        count = 0.0 if self.step is None else (value - self.low) / self.step
        is_reached = abs(count - round(count)) <= _STEP_TOLERANCE * max(1.0, count)
        return self.low <= value <= self.high and is_reached


class IntDomain(_Range[int]):
    """A range of whole numbers."""

    type: Literal["int"]
    """Kind of domain."""
    step: int = Field(default=1, gt=0)

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0


class CategoricalDomain(_Domain):
    """One of some values of any kind."""

    type: Literal["categorical"]
    """Kind of domain."""
    choices: list[JsonValue] = Field(min_length=1)
    """The values."""

    def probes(self) -> dict[str, JsonValue]:
        """Every choice."""
        return {f"choices[{index}]": choice for index, choice in enumerate(self.choices)}

    @property
    def num_values(self) -> float:
        """Number of choices."""
        return len(self.choices)

    def problems(self) -> Iterator[Problem]:
        """Choices that are there twice."""
        seen: dict[str, int] = {}
        for index, choice in enumerate(self.choices):
            # Optuna compares choices as Python does: to it, true is 1.
            shown = table_text(int(choice) if isinstance(choice, bool) else choice)
            first = seen.setdefault(shown, index)
            if first != index:
                message = duplicate_message(choice, self.choices[first], "choices", first)
                yield Problem(f"choices[{index}]", message)

    def __contains__(self, value: object) -> bool:
        return any(same(value, choice) for choice in self.choices)


Domain: TypeAlias = Annotated[FloatDomain | IntDomain | CategoricalDomain, Field(discriminator="type")]


def same(first: Any, second: Any) -> bool:
    """Return True when two JSON values are the same, types included (1 is neither 1.0 nor true)."""
    return canonical_json(first) == canonical_json(second)


def table_text(value: Any) -> str:
    """Reduce a JSON value to its appearance in a table, where 1, 1.0 and "1" look the same."""
    if isinstance(value, str):
        try:
            number = json.loads(value)
        except ValueError:
            return value
        if type(number) in (int, float):
            return table_text(number)
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return canonical_json(value)


def duplicate_message(
    value: Any,
    other: Any,
    name: str,
    first: int,
) -> str:
    """Describe the problem of a value that looks like an earlier one, ``name[first]``."""
    alike = "" if same(value, other) else f": {other!r} and {value!r} cannot be told apart in a table"
    return f"is the same as {name}[{first}]{alike}; write each value once"


def alternatives(condition: Any) -> list[Any]:
    """Return the values that meet one entry of a condition: a list's items, or the value alone."""
    return condition if isinstance(condition, list) else [condition]


def holds(when: Mapping[str, Any] | None, values: Mapping[str, Any]) -> bool:
    """Return True when a condition holds; None always does.

    Args:
        when: By path, the value that meets the condition, or a list of such values.
        values: Values by path: sampled parameters, and the config's for paths outside the space. A path
            without a value does not meet its condition.
    """
    return all(
        path in values and any(same(values[path], value) for value in alternatives(condition))
        for path, condition in (when or {}).items()
    )


def full_condition(path: str, space: Mapping[str, Domain]) -> dict[str, Any]:
    """Collect the conditions for a path to be sampled: its own, and those of the paths that they name."""
    conditions = {}
    queue = [path]
    while queue:
        domain = space.get(queue.pop())
        for other, condition in ((domain.when if domain else None) or {}).items():
            if other not in conditions:
                conditions[other] = condition
                queue.append(other)
    return conditions


def sampling_order(space: Mapping[str, Domain]) -> list[str]:
    """Order the paths of a space so that each comes after those that its condition names.

    Raises:
        graphlib.CycleError: Conditions depend on each other.
    """
    graph = {}
    for path, domain in space.items():
        graph[path] = [other for other in domain.when or {} if other in space]
    # A path is as deep as the longest chain of conditions above it.
    depth: dict[str, int] = {}
    for path in graphlib.TopologicalSorter(graph).static_order():
        depths_above = [depth[other] for other in graph[path]]
        depth[path] = 1 + max(depths_above, default=-1)
    # By depth and then in file order, which the sorter alone does not keep.
    return sorted(space, key=depth.__getitem__)


def corner(
    space: Mapping[str, Domain],
    config: Mapping[str, Any],
    end: int,
    fixed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Choose one end of every domain whose condition holds; values by path.

    Args:
        space: Domains by path.
        config: Nested values of the config, for conditions on paths outside the space.
        end: 0 for the first value of each domain, -1 for the last.
        fixed: Values to choose instead, by path.
    """
    params = {}
    fixed = fixed or {}
    # In sampling order, because a condition may name a value that is chosen here.
    for path in sampling_order(space):
        domain = space[path]
        outside = [other for other in domain.when or {} if other not in space]
        if holds(domain.when, paths.get_all(config, outside) | params):
            ends = list(domain.probes().values())
            params[path] = fixed.get(path, ends[end])
    return params


def space_problems(space: Mapping[str, Domain]) -> Iterator[Problem]:
    """Find the problems of a space that need no system to be seen, with paths inside the space."""
    for path, domain in space.items():
        for problem in domain.problems():
            yield Problem(f"{path}.{problem.path}", problem.message)
        for other, condition in (domain.when or {}).items():
            if other in space and other != path:
                for value in alternatives(condition):
                    if value not in space[other]:
                        message = f"can never hold: {value!r} is not a value of the searched {other}"
                        yield Problem(f"{path}.when.{other}", message)
    try:
        sampling_order(space)
    except graphlib.CycleError as error:
        cycle = list(reversed(error.args[1]))
        yield Problem(f"{cycle[0]}.when", f"conditions form a cycle: {' needs '.join(cycle)}; remove one")


def start_problems(space: Mapping[str, Domain], start: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Find the mistakes in values that are to be tried first, with paths inside their list."""
    for index, values in enumerate(start):
        for path, value in values.items():
            where = f"[{index}].{path}"
            if path not in space:
                yield Problem(where, f"is not searched. {nearest(path, list(space))}")
                continue
            conditions = full_condition(path, space)
            decided = conditions.keys() & values.keys()
            if value not in space[path]:
                yield Problem(where, f"{value!r} is not a value of the searched {path}")
            elif not holds({other: conditions[other] for other in decided}, values):
                yield Problem(where, "is not searched beside these values, see its condition; leave it out")
