"""The settings of a typed config, read from its JSON schema: dotted paths, types, defaults, ranges."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from nlgraft.basics.errors import nearest
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.study.data import paths
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import System

# Descriptions of settings: the docstrings below the fields of a config, put into its JSON schema.


class _WithDefaults(GenerateJsonSchema):
    def get_default_value(self, schema: Any) -> Any:
        factory = schema.get("default_factory")
        takes_data = schema.get("default_factory_takes_data")
        if factory and not takes_data:
            return factory()
        return super().get_default_value(schema)


class DescribedSchema(_WithDefaults):
    """Writes schemas with all defaults, in which the docstring below a field is its description."""

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
    # From the most general class on, so that a subclass may describe a field anew.
    bases = [base for base in reversed(model.__mro__) if issubclass(base, StrictConfig)]
    return {name: text for base in bases for name, text in _field_docstrings(base).items()}


@cache
def _field_docstrings(model: type[Any]) -> dict[str, str]:
    try:
        source = inspect.getsource(model)
    except OSError:
        # A class typed in a console, or a generic config with its parameter, has no source.
        return {}
    class_node = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(class_node, ast.ClassDef)
    texts = {}
    for neighbours in pairwise(class_node.body):
        match neighbours:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
    return texts


REQUIRED: Any = object()
"""Default of a knob that has none."""

Schema = Mapping[str, Any]

_MAX_DEPTH = 12
_TYPES = {
    "integer": "int",
    "number": "float",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "array": "list",
    "object": "mapping",
}
_BOUNDS = {
    "minimum": ">= {}",
    "exclusiveMinimum": "> {}",
    "maximum": "<= {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "multiple of {}",
    "minLength": "at least {} long",
    "minItems": "at least {} long",
    "minProperties": "at least {} long",
    "maxLength": "at most {} long",
    "maxItems": "at most {} long",
    "pattern": "matching {}",
}


@dataclass(frozen=True)
class Knob:
    """One setting of a system.

    Attributes:
        path: Dotted path in the config; ``[]`` stands for an index, ``<key>`` for any key.
        type: Its type in words.
        default: Its default as a JSON value, or `REQUIRED`.
        allowed: Range or choices; empty when the type implies them.
        description: Meaning, unit and section of the paper.
        kinds: For a setting of some variants of its part alone, the choices that have it: ``corpus: files``.
    """

    path: str
    type: str
    default: Any
    allowed: str
    description: str
    kinds: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Turn the knob into JSON values; ``default`` is null where ``is_required``."""
        is_required = self.default is REQUIRED
        default = None if is_required else self.default
        return vars(self) | {"default": default, "is_required": is_required, "kinds": [*self.kinds]}


@dataclass(frozen=True)
class Place:
    """A point of a config: the schemas of the variants that it may have.

    Attributes:
        variants: Schemas without references and unions; none where a path leads nowhere.
        definitions: Schemas by name, which references point to.
    """

    variants: Sequence[Schema]
    definitions: Mapping[str, Schema]

    @classmethod
    @lru_cache(maxsize=64)
    def root(cls, model: type[BaseModel], *, is_described: bool = False) -> Place:
        """Return the place of a whole config, with the descriptions of its settings if wanted."""
        # Descriptions need the sources of all classes, which validation does not.
        schema = model.model_json_schema(schema_generator=DescribedSchema if is_described else _WithDefaults)
        return cls([], schema.get("$defs", {})).at([schema])

    def at(self, schemas: Sequence[Schema]) -> Place:
        """Return the place that some schemas of the same config describe."""
        return Place([variant for schema in schemas for variant in self._flat(schema)], self.definitions)

    def _flat(self, schema: Schema) -> Iterator[Schema]:
        if "$ref" in schema:
            yield from self._flat(self.definitions[schema["$ref"].rpartition("/")[2]])
        elif "anyOf" in schema or "oneOf" in schema:
            for alternative in schema.get("anyOf") or schema["oneOf"]:
                yield from self._flat(alternative)
        else:
            yield schema

    def fitting(self, value: Any) -> Place:
        """Keep the variants that agree with the choices in a mapping; all where none does."""
        agreeing = [variant for variant in self.variants if _agrees(variant, value)]
        return Place(agreeing or self.variants, self.definitions)

    def step(self, part: str | int) -> Place:
        """Follow a key or an index."""
        reached: list[Schema] = []
        for schema in self.variants:
            # An empty schema allows anything.
            others = schema.get("additionalProperties", not schema)
            named = [
                inner
                for pattern, inner in schema.get("patternProperties", {}).items()
                if re.search(pattern, str(part))
            ]
            if part in schema.get("properties", {}):
                reached.append(schema["properties"][part])
            elif named or "patternProperties" in schema:
                reached += named
            elif others is not False:
                reached.append({} if others is True else others)
            elif schema.get("type") == "array" and str(part).isdigit():
                reached += _inner(schema) or [{}]
        return self.at(reached)

    @property
    def keys(self) -> list[str]:
        """The keys that a mapping has here, in order."""
        fields = (schema.get("properties", {}) for schema in self.variants)
        return list(dict.fromkeys(key for properties in fields for key in properties))

    @property
    def choices(self) -> list[Any]:
        """The values of which one must be chosen; empty where there are no choices."""
        return list(dict.fromkeys(choice for schema in self.variants for choice in _choices(schema)))

    @property
    def type(self) -> str:
        """The type in words: ``int or null``, ``list of text``, ``one of``."""
        return " or ".join(dict.fromkeys(map(self._type, self.variants)))

    @property
    def allowed(self) -> str:
        """Choices and bounds in words, joined by commas."""
        limits = [text for schema in self.variants for text in self._limits(schema)]
        return ", ".join(dict.fromkeys(limits))

    @property
    def text(self) -> str:
        """Type and limits together: ``int >= 1 or null``."""
        texts = [
            f"{self._type(schema)} {', '.join(self._limits(schema))}".strip() for schema in self.variants
        ]
        return " or ".join(dict.fromkeys(texts))

    def _limits(self, schema: Schema) -> list[str]:
        """Choices and bounds of a value, or of a list and its items."""
        choices = _choices(schema) or self.at(_inner(schema)).choices
        words = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices]
        bounds = [text.format(schema[name]) for name, text in _BOUNDS.items() if name in schema]
        return words + bounds

    def _type(self, schema: Schema) -> str:
        if _choices(schema):
            return "one of"
        name = _TYPES.get(schema.get("type", ""), "anything")
        inner = self.at(_inner(schema)).type
        return f"{name} of {inner}" if inner not in ("", "anything") else name


@lru_cache(maxsize=64)
def knobs(model: type[BaseModel], *, is_by_kind: bool = False) -> list[Knob]:
    """List every setting of a config, nested ones included, in the order of the fields.

    Where variants of a config share a path, their types and ranges are joined; those that differ stay apart
    if ``is_by_kind``.
    """
    rows: dict[tuple[str, ...], Knob] = {}
    for knob in _rows(Place.root(model, is_described=True), "", REQUIRED, 0):
        differs = (knob.type, knob.allowed, knob.description) if is_by_kind and knob.kinds else ()
        key = (knob.path, *differs)
        rows[key] = _join(rows[key], knob) if key in rows else knob
    return list(rows.values())


def path_problem(model: type[BaseModel], path: str) -> str | None:
    """Return why a config has no such path, with the nearest valid path; None when it has."""
    try:
        parts = paths.split(path)
    except ValueError as error:
        return str(error)
    place = Place.root(model)
    for index, part in enumerate(parts):
        child = place.step(part)
        if not child.variants:
            before = ".".join(parts[:index])
            siblings = [paths.join(before, key) for key in place.keys]
            return f"the system's config has no {path!r}. {_suggest(model, path, parts, index, siblings)}"
        place = child
    return None


def _suggest(
    model: type[BaseModel],
    path: str,
    parts: list[str],
    index: int,
    siblings: list[str],
) -> str:
    """Suggest the setting of that name in another part, or the nearest one here, or the nearest of all."""
    valid_paths = [knob.path for knob in knobs(model)]
    ends = (".".join(parts[index:]), parts[-1])
    elsewhere = [other for end in ends for other in valid_paths if f".{other}".endswith(f".{end}")]
    nearby = nearest(".".join(parts[: index + 1]), siblings)
    # The part is right and the last name misspelt: a name of another part would mislead.
    if not elsewhere and "Did you mean" in nearby:
        return nearby
    near_anywhere = nearest(path, valid_paths).partition("? ")
    if elsewhere or near_anywhere[1]:
        suggestion = f"Did you mean '{elsewhere[0]}'" if elsewhere else near_anywhere[0]
        return f"{suggestion}? Allowed here: {', '.join(siblings) or 'nothing'}"
    return nearby


def _rows(
    place: Place,
    parent: str,
    defaults: Any,
    depth: int,
) -> Iterator[Knob]:
    """The knobs inside a mapping; those of the variant that the defaults belong to come first."""
    # A config may contain itself, as a tree of parts does.
    if depth > _MAX_DEPTH:
        return
    is_union = len(place.variants) > 1
    for schema in sorted(place.variants, key=lambda schema: not _agrees(schema, defaults)):
        variant_defaults = defaults if _agrees(schema, defaults) else {}
        kinds = _kinds(schema, place.variants) if is_union else ()
        for name, field in schema.get("properties", {}).items():
            default = variant_defaults.get(name, field.get("default", REQUIRED))
            path = paths.join(parent, name)
            rows = _field_rows(place.at([field]), path, default, field, depth)
            # A field that every variant has in the same form belongs to none of them in particular.
            others = [other.get("properties", {}).get(name) for other in place.variants]
            is_common = all(field == other for other in others)
            for knob in rows:
                is_apart = kinds and not knob.kinds and "const" not in field and not is_common
                yield replace(knob, kinds=kinds) if is_apart else knob


def _field_rows(
    place: Place,
    path: str,
    default: Any,
    field: Schema,
    depth: int,
) -> Iterator[Knob]:
    nested = [schema for schema in place.variants if "properties" in schema]
    yield from _rows(place.at(nested), path, default, depth + 1)
    leaves: list[Schema] = []
    for schema in place.variants:
        inner = place.at(_inner(schema))
        if inner.keys:
            is_list = schema.get("type") == "array"
            yield from _rows(inner, f"{path}[]" if is_list else f"{path}.<key>", REQUIRED, depth + 1)
        elif schema not in nested:
            leaves.append(schema)
    if any(schema.get("type") != "null" for schema in leaves):
        # The variants of a union without parts are one setting, e.g. ``int or null``.
        leaf = place.at(leaves)
        yield Knob(path, leaf.type, default, leaf.allowed, field.get("description", ""))


def _kinds(schema: Schema, variants: Sequence[Schema]) -> tuple[str, ...]:
    """The choices by which a variant of a mapping differs from all others: ``corpus: files``."""
    fields = [variant.get("properties", {}) for variant in variants]
    names = [name for name in fields[0] if all("const" in properties.get(name, {}) for properties in fields)]
    return tuple(f"{name}: {schema['properties'][name]['const']}" for name in names)


def _inner(schema: Schema) -> list[Schema]:
    """The schemas of a list's items, each once, or of the values of a mapping with any keys."""
    keyed = schema.get("patternProperties", {}).values()
    items = [*schema.get("prefixItems", []), schema.get("items"), schema.get("additionalProperties"), *keyed]
    schemas = [item for item in items if isinstance(item, Mapping)]
    return [item for index, item in enumerate(schemas) if item not in schemas[:index]]


def _choices(schema: Schema) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum", [])


def _agrees(schema: Schema, value: Any) -> bool:
    """Return True where a schema describes mappings, and this one makes only choices that it has."""
    if not isinstance(value, Mapping) or schema.get("type", "object") != "object":
        return False
    fields = schema.get("properties", {})
    choices = {name: _choices(fields[name]) for name in value if name in fields}
    return all(not allowed or value[name] in allowed for name, allowed in choices.items())


def _join(first: Knob, second: Knob) -> Knob:
    def joined(first_text: str, second_text: str, separator: str) -> str:
        return separator.join(
            dict.fromkeys(
                text for text in (*first_text.split(separator), *second_text.split(separator)) if text
            )
        )

    return Knob(
        first.path,
        joined(first.type, second.type, " or "),
        second.default if first.default is REQUIRED else first.default,
        joined(first.allowed, second.allowed, ", "),
        joined(first.description, second.description, " / "),
        tuple(dict.fromkeys((*first.kinds, *second.kinds))),
    )


# JSON schemas of study files, for editors.


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
    optional_path = {"anyOf": [path, {"type": "null"}], "default": None}
    parts["Factor"]["properties"]["target"] = optional_path
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
        # A setting may itself be called "required".
        kept = {key: value for key, value in schema.items() if key != "required" or isinstance(value, dict)}
        return {key: _partial(value) for key, value in kept.items()}
    return schema
