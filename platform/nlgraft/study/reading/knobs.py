"""Walking a typed config: which dotted paths it has, and what each takes."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nlgraft.errors import nearest
from nlgraft.study.data import paths

REQUIRED = PydanticUndefined
"""Default of a knob that has none."""

_MAX_DEPTH = 12
_TYPE_NAMES = {int: "int", float: "float", str: "text", bool: "true or false", type(None): "null"}
_BOUNDS = {
    "ge": ">= {}",
    "gt": "> {}",
    "le": "<= {}",
    "lt": "< {}",
    "multiple_of": "multiple of {}",
    "min_length": "at least {} long",
    "max_length": "at most {} long",
    "pattern": "matches {}",
}


@dataclass(frozen=True)
class Knob:
    """One setting of a system.

    Attributes:
        path: Dotted path in the config; ``[]`` stands for an index, ``<key>`` for any key.
        type: What it takes, in words.
        default: Its default as a JSON value, or `REQUIRED`.
        allowed: Range or choices, empty when the type says it all.
        description: Meaning, unit and section of the paper.
    """

    path: str
    type: str
    default: Any
    allowed: str
    description: str

    def to_json(self) -> dict[str, Any]:
        """Turn the knob into JSON values; ``default`` is null where ``is_required``."""
        return {
            "path": self.path,
            "type": self.type,
            "default": None if self.default is REQUIRED else self.default,
            "is_required": self.default is REQUIRED,
            "allowed": self.allowed,
            "description": self.description,
        }


def knobs(model: type[BaseModel]) -> list[Knob]:
    """List every setting of a config, nested ones included.

    Args:
        model: The config's type.

    Returns:
        Knobs in the order of the fields. Where variants share a path, their types and ranges are joined.
    """
    rows: dict[str, Knob] = {}
    for knob in _model_knobs(model, "", PydanticUndefined, 0):
        rows[knob.path] = _join(rows[knob.path], knob) if knob.path in rows else knob
    return list(rows.values())


def miss(model: type[BaseModel], path: str) -> str | None:
    """Say why a config has no such path.

    Args:
        model: The config's type.
        path: A dotted path.

    Returns:
        The message with the nearest valid path, or None when the path exists.
    """
    try:
        parts = paths.split(path)
    except ValueError as error:
        return str(error)
    reached: list[Any] = [model]
    for index, part in enumerate(parts):
        inside = steps(reached, part)
        if not inside:
            before = ".".join(parts[:index])
            siblings = [paths.join(before, name) for name in field_names(reached)]
            return f"the system's config has no {path!r}. {_suggest(model, path, parts, index, siblings)}"
        reached = inside
    return None


def field_names(annotations: Iterable[Any], value: Any = None) -> list[str]:
    """List the keys that a mapping may have at this point of a config.

    Args:
        annotations: Type annotations of the point.
        value: The mapping found there, which tells the variants of a union apart.

    Returns:
        Field names in order, each once.
    """
    names: dict[str, None] = {}
    for model in _fitting(_models(annotations), value):
        names.update(dict.fromkeys(model.model_fields))
    return list(names)


def steps(annotations: Iterable[Any], part: str | int, value: Any = None) -> list[Any]:
    """Follow one part of a path through type annotations.

    Args:
        annotations: Type annotations of the point.
        part: A key or an index.
        value: The value found at the point, which tells the variants of a union apart.

    Returns:
        The annotations one step further in; empty when the part leads nowhere.
    """
    reached: list[Any] = []
    annotations = list(annotations)
    for model in _fitting(_models(annotations), value):
        if part in model.model_fields:
            reached.append(model.model_fields[str(part)].annotation)
    for variant in _variants(annotations):
        origin, arguments = get_origin(variant) or variant, get_args(variant)
        if variant is Any or variant is object:
            reached.append(Any)
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            reached.append(arguments[1] if len(arguments) == 2 else Any)
        elif _is_sequence(origin) and (isinstance(part, int) or part.isdigit()):
            reached.append(arguments[0] if arguments else Any)
    return reached


def _suggest(model: type[BaseModel], path: str, parts: list[str], index: int, siblings: list[str]) -> str:
    asked = ".".join(parts[: index + 1])
    known = [knob.path for knob in knobs(model)]
    alike = [other for other in known if other.rsplit(".", 1)[-1] == parts[-1] and other != path]
    if siblings and "Did you mean" in nearest(asked, siblings):
        return nearest(asked, siblings)
    whole = nearest(path, known).partition("? ")
    if whole[1] or alike:
        meant = f"Did you mean '{alike[0]}'" if alike else whole[0]
        return f"{meant}? Allowed here: {', '.join(siblings) or 'nothing'}"
    return nearest(asked, siblings)


def _variants(annotations: Iterable[Any]) -> Iterator[Any]:
    for annotation in annotations:
        origin = get_origin(annotation)
        if origin is Annotated:
            yield from _variants([get_args(annotation)[0]])
        elif origin in (Union, types.UnionType):
            yield from _variants(get_args(annotation))
        elif hasattr(annotation, "__value__"):  # `type X = ...`
            yield from _variants([annotation.__value__])
        else:
            yield annotation


def _models(annotations: Iterable[Any]) -> list[type[BaseModel]]:
    return [v for v in _variants(annotations) if isinstance(v, type) and issubclass(v, BaseModel)]


def _fitting(models: list[type[BaseModel]], value: Any) -> list[type[BaseModel]]:
    if not isinstance(value, Mapping):
        return models
    return [model for model in models if _agrees(model, value)] or models


def _agrees(model: type[BaseModel], value: Mapping[str, Any]) -> bool:
    for name, info in model.model_fields.items():
        if name in value and get_origin(info.annotation) is Literal:
            given = value[name]
            if not isinstance(given, (str, int, bool)) or given not in get_args(info.annotation):
                return False
    return True


def _is_sequence(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, (Sequence, set, frozenset)) and origin is not str


def _model_knobs(model: type[BaseModel], parent: str, defaults: Any, depth: int) -> Iterator[Knob]:
    if depth > _MAX_DEPTH:
        return
    for name, info in model.model_fields.items():
        default = getattr(defaults, name) if isinstance(defaults, model) else _default(info)
        path = paths.join(parent, name)
        leaf_types: list[str] = []
        # The variant that the default is made of comes first: its default counts where variants share a path.
        variants = list(_variants([info.annotation]))
        if isinstance(default, BaseModel):
            variants.sort(key=lambda variant: type(default) is not variant)
        for variant in variants:
            inner, inside = _nested(variant, path)
            if inner is None:
                leaf_types.append(_type_text(variant))
                continue
            yield from _model_knobs(
                inner, inside, default if inside == path else PydanticUndefined, depth + 1
            )
        if leaf_types != ["null"] and leaf_types:
            yield Knob(
                path,
                " or ".join(dict.fromkeys(leaf_types)),
                _plain(default),
                _allowed(info),
                info.description or "",
            )


def _nested(variant: Any, path: str) -> tuple[type[BaseModel] | None, str]:
    origin, arguments = get_origin(variant) or variant, get_args(variant)
    if isinstance(variant, type) and issubclass(variant, BaseModel):
        return variant, path
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        models = _models([arguments[1]])
        return (models[0] if models else None), f"{path}.<key>"
    if _is_sequence(origin) and arguments:
        models = _models([arguments[0]])
        return (models[0] if models else None), f"{path}[]"
    return None, path


def _default(info: FieldInfo) -> Any:
    try:
        return info.get_default(call_default_factory=True, validated_data={})
    except (TypeError, KeyError):  # a factory that computes from other fields
        return PydanticUndefined


def _plain(default: Any) -> Any:
    if isinstance(default, BaseModel):
        return default.model_dump(mode="json")
    if isinstance(default, Enum):
        return default.value
    if isinstance(default, (list, tuple, set, frozenset)):
        return [_plain(item) for item in default]
    if isinstance(default, Mapping):
        return {str(key): _plain(item) for key, item in default.items()}
    is_atom = default is PydanticUndefined or isinstance(default, (str, int, float, bool, type(None)))
    return default if is_atom else str(default)


def _type_text(variant: Any) -> str:
    origin, arguments = get_origin(variant), get_args(variant)
    if origin is Literal:
        return "one of"
    if origin is None:
        return _TYPE_NAMES.get(variant, getattr(variant, "__name__", str(variant)).lower())
    if issubclass(origin, Mapping):
        return f"mapping of {_types_text(arguments[1])}"
    return f"list of {_types_text(arguments[0])}" if arguments else "list"


def _types_text(annotation: Any) -> str:
    return " or ".join(dict.fromkeys(_type_text(variant) for variant in _variants([annotation])))


def _allowed(info: FieldInfo) -> str:
    choices = [
        str(choice).lower() if isinstance(choice, bool) else str(choice)
        for variant in _variants([info.annotation])
        for choice in (get_args(variant) if get_origin(variant) is Literal else _members(variant))
    ]
    bounds = [
        text.format(getattr(constraint, name))
        for constraint in info.metadata
        for name, text in _BOUNDS.items()
        if getattr(constraint, name, None) is not None
    ]
    return ", ".join(choices + bounds)


def _members(variant: Any) -> list[Any]:
    if isinstance(variant, type) and issubclass(variant, Enum):
        return [member.value for member in variant]
    return []


def _join(left: Knob, right: Knob) -> Knob:
    def both(mine: str, theirs: str, separator: str) -> str:
        return separator.join(
            dict.fromkeys(text for text in (*mine.split(separator), *theirs.split(separator)) if text)
        )

    return Knob(
        left.path,
        both(left.type, right.type, " or "),
        right.default if left.default is REQUIRED else left.default,
        both(left.allowed, right.allowed, ", "),
        left.description
        if left.description == right.description
        else both(left.description, right.description, " / "),
    )
