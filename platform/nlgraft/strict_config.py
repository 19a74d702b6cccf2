"""The base of all configs and of all parts of a study."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictConfig(BaseModel):
    """Immutable settings: unknown keys are refused, the docstring below a field describes it.

    These docstrings are read where they are shown (`nlgraft.study.reading.descriptions`): pydantic's own
    ``use_attribute_docstrings`` parses the source of every class on import, a quarter of `nlgraft validate`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
