"""JSON schemas of study files, for editors."""

from __future__ import annotations

from typing import Any

from nlgraft.study.data.study import Study
from nlgraft.study.data.system import System
from nlgraft.study.reading.descriptions import DescribedSchema
from nlgraft.study.reading.knobs import knobs

_DOTTED = r"^[^.]+\..+$"


def study_schema() -> dict[str, Any]:
    """Describe the studies of any system, as a JSON schema of draft 2020-12."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return dialect | Study.model_json_schema(schema_generator=DescribedSchema) | {"title": "nlgraft study"}


def system_schema(system: System) -> dict[str, Any]:
    """Describe the studies of one system: its settings, their values and its metrics."""
    schema = study_schema()
    config = _partial(
        system.config_type.model_json_schema(
            ref_template="#/$defs/system/{model}", schema_generator=DescribedSchema
        )
    )
    parts = schema["$defs"]
    parts["system"] = config.pop("$defs", {})
    path = {"enum": [knob.path for knob in knobs(system.config_type)]}
    selecting = [
        name for name, metric in system.metrics.items() if metric.split != "test" and not metric.is_derived
    ]
    parts["Objective"]["properties"]["metric"] = {"enum": selecting}
    parts["Factor"]["properties"]["target"] = {"anyOf": [path, {"type": "null"}], "default": None}
    parts["Search"]["properties"]["space"]["propertyNames"] = path
    fields = schema["properties"]
    fields["system"] = {"const": system.path, "description": system.description}
    fields["data"] = config["properties"]["data"]
    fields["base"] = {**config, "patternProperties": {_DOTTED: {}}, "additionalProperties": False}
    return schema


def _partial(schema: Any) -> Any:
    """Copy a schema with nothing required: a study gives some settings here and others elsewhere."""
    if isinstance(schema, list):
        return [_partial(entry) for entry in schema]
    if isinstance(schema, dict):
        return {key: _partial(value) for key, value in schema.items() if not _is_required(key, value)}
    return schema


def _is_required(key: str, value: Any) -> bool:
    return key == "required" and isinstance(value, list)
