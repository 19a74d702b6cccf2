"""Descriptions of settings: the docstrings below the fields of a config, put into its JSON schema."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from nlgraft.basics.strict_config import StrictConfig


class DescribedSchema(GenerateJsonSchema):
    """Writes schemas in which the docstring below a field is its description."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Write the schema of one model."""
        written = super().model_schema(schema)
        texts = descriptions(schema["cls"])
        for name, field in written.get("properties", {}).items():
            if name in texts:
                field.setdefault("description", texts[name])
        return written


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields of a config by field, those of its bases included."""
    bases = [base for base in reversed(model.__mro__) if issubclass(base, StrictConfig)]
    return {name: text for base in bases for name, text in _own(base).items()}


@cache
def _own(model: type[Any]) -> dict[str, str]:
    try:
        source = inspect.getsource(model)
    except OSError:  # typed in a console, or a generic config with its parameter, which has no source
        return {}
    found = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(found, ast.ClassDef)
    texts = {}
    for field, below in zip(found.body, found.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = below.value.value
            if isinstance(text, str):
                texts[field.target.id] = inspect.cleandoc(text)
    return texts
