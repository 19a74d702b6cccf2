"""The base of all configs and of all parts of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

# Settings that are read only where other settings have certain values.


GIVEN = "given"
"""In a condition: any value but null."""
Condition = Mapping[str, tuple[Any, ...]]
"""Dotted paths of settings, each with the values that it must have."""
ReadWhen = Mapping[str, tuple[Condition, ...]]
"""Path of a setting or a part -> conditions, one of which must hold for it to be read; if none, it always is.

A config or a part declares them as ``READ_WHEN``, with paths that start at itself.
"""

_PartT = TypeVar("_PartT", bound=BaseModel)


def are_met(conditions: Sequence[Condition], config: Mapping[str, Any]) -> bool:
    """Tell if one of some conditions holds in a config of nested JSON values; true if there are none."""
    return not conditions or any(
        all(_has(config, path, allowed) for path, allowed in condition.items()) for condition in conditions
    )


def _has(
    config: Any,
    path: str,
    allowed: tuple[Any, ...],
) -> bool:
    for name in path.split("."):
        # A setting may be left out of a dump where it is null.
        config = config.get(name) if isinstance(config, Mapping) else None
    return config in allowed or (GIVEN in allowed and config is not None)


def as_read(part: _PartT) -> _PartT:
    """Reset the fields of a part that nothing reads to their defaults, so that they enter no fingerprint."""
    declared: ReadWhen = getattr(type(part), "READ_WHEN", {})
    values, fields = part.model_dump(mode="json"), type(part).model_fields
    unread = {
        name: fields[name].default for name, conditions in declared.items() if not are_met(conditions, values)
    }
    return part.model_copy(update=unread)


class Contradictions(ValueError):
    """Settings contradict each other.

    Args:
        problems: A sentence for each contradiction.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class StrictConfig(BaseModel):
    """Immutable settings: unknown keys are refused, the docstring below a field describes it.

    All contradictions between settings are reported together, see ``_problems``.

    These docstrings are read where they are shown (`nlgraft.study.reading.knobs`): pydantic's own
    ``use_attribute_docstrings`` parses the source of every class on import, a quarter of `nlgraft validate`.
    """

    READ_WHEN: ClassVar[ReadWhen] = {}

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if problems := list(self._problems()):
            raise Contradictions(problems)
        return self

    def _problems(self) -> Iterator[str]:
        """Yield each contradiction between settings in a sentence that names them and what to do."""
        yield from ()

    def __dir__(self) -> list[str]:
        """List own names for completion, without pydantic's."""
        hidden = {*dir(BaseModel), "READ_WHEN"} - set(dir(object)) - set(type(self).model_fields)
        return [name for name in super().__dir__() if name not in hidden]
