"""The base of all configs and of all parts of a study."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictConfig(BaseModel):
    """Immutable settings: unknown keys are refused, the docstring below a field describes it.

    These docstrings are read where they are shown (`nlgraft.study.reading.descriptions`): pydantic's own
    ``use_attribute_docstrings`` parses the source of every class on import, a quarter of `nlgraft validate`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __dir__(self) -> list[str]:
        """List own names for completion, without pydantic's."""
        hidden = set(dir(BaseModel)) - set(dir(object)) - set(type(self).model_fields)
        return [name for name in super().__dir__() if name not in hidden]
