"""Rules over several settings that pydantic does not reach, since one of these settings is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data import paths


def hidden_problems(
    model: type[BaseModel], values: Mapping[str, Any], context: Mapping[str, Any]
) -> list[str]:
    """Apply a system's own rules to a config of which some values are refused.

    Refused values count as their defaults; what a rule says of these is left out, as it may be due to that.

    Args:
        model: The system's config; it has rules if it has ``_problems``, as `SystemConfig`.
        values: Values of which pydantic refuses some.
        context: Context of the validation.

    Returns:
        Sentences of rules; none where the config cannot be put together.
    """
    refused: set[str] = set()
    try:
        config = _built(model, values, "", context, refused)
        problems = [*getattr(config, "_problems", tuple)()]
    except Exception:  # rules may rely on what was refused, and then fail as they please
        return []
    named = [re.compile(rf"(?<![\w.]){re.escape(path)}(?!\w)") for path in refused]
    return [problem for problem in problems if not any(path.search(problem) for path in named)]


def _built(
    model: type[BaseModel],
    values: Mapping[str, Any],
    path: str,
    context: Mapping[str, Any],
    refused: set[str],
) -> BaseModel:
    """Build the part at a path, without its rules if they refuse it, and note the refused values' paths."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if name not in values:
            found[name] = field.get_default(call_default_factory=True)
            continue
        try:
            found[name] = _validated(field, values[name], context)
        except ValidationError:
            part = next(_models(field.annotation), None)
            if part is not None and isinstance(values[name], Mapping):
                found[name] = _built(part, values[name], paths.join(path, name), context, refused)
            else:
                refused.add(paths.join(path, name))
                found[name] = field.get_default(call_default_factory=True)
    given = {name: found[name] for name in values if name in found}
    given = {name: one for name, one in given.items() if paths.join(path, name) not in refused}
    try:
        return model.model_validate(given, context=dict(context))  # defaults may depend on what is given
    except ValidationError:
        return model.model_construct(**found)


def _validated(field: FieldInfo, value: Any, context: Mapping[str, Any]) -> Any:
    annotation: Any = field.annotation
    for constraint in field.metadata:
        annotation = Annotated[annotation, constraint]
    if field.discriminator is not None:
        annotation = Annotated[annotation, FieldInfo(discriminator=field.discriminator)]
    return TypeAdapter(annotation).validate_json(canonical_json(value), strict=True, context=dict(context))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The one part that an annotation allows, besides null; none where there are several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, UnionType):
        found = [model for inner in get_args(annotation) for model in _models(inner)]
        if len(found) == 1:
            yield found[0]
