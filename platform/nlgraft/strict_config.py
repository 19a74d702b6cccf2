"""The base of all configs and of all parts of a study."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictConfig(BaseModel):
    """Immutable settings: unknown keys are refused, the docstring below a field describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
