"""Scales, ``key=value`` overrides and environment variables, applied to a study file."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

from nlgraft.basics.errors import Problem, nearest
from nlgraft.study.data import paths
from nlgraft.study.data.study import NOT_IN_VARIANT, Overrides, Study
from nlgraft.study.reading import documents
from nlgraft.study.reading.documents import Document

_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_LIKE_VARIABLE = re.compile(r"\$\{(?:oc\.)?env\b[^}]*\}?|\$\{[A-Z][A-Z0-9_]*\}")
_LEVEL = re.compile(r"[\w.+-]+")
_NOT_IN_SCALES = ("schema_version", "name", "system", "scales")


def apply(
    document: Document,
    overrides: Iterable[str],
    environ: Mapping[str, str],
) -> Overrides:
    """Apply scales, overrides and environment variables to a document, in place.

    Args:
        document: A document whose values are a mapping.
        overrides: ``@scale`` and ``key=value``; all scales first, each kind in the order given. ``key=a,b``
            makes a factor of these levels.
        environ: Values of ``${env:NAME}``. Scales that are not used stay as they are.

    Returns:
        The overrides that make the study a variant, values as written.
    """
    # The caller's document may be applied again with other overrides.
    values = copy.deepcopy(document.values)
    overrides = list(overrides)
    _expand_dotted(values, "", document)
    for name, scale in _scales(values).items():
        if isinstance(scale, dict):
            _expand_dotted(scale, f"scales.{name}", document)
    for text in overrides:
        if text.startswith("@"):
            values = _apply_scale(values, text, document)
    applied: dict[str, Any] = {}
    for text in overrides:
        pair = None if text.startswith("@") else _apply_pair(values, text, document)
        if pair is not None and paths.split(pair[0])[0] not in NOT_IN_VARIANT:
            applied[pair[0]] = pair[1]
    # Scales are left out: a variable that only an unused scale names need not be set.
    scales = values.pop("scales", None)
    values = _interpolated(values, environ, document.problems)
    if scales is not None:
        values["scales"] = scales
    document.values = values
    names = [text.removeprefix("@") for text in overrides if text.startswith("@")]
    return Overrides(tuple(dict.fromkeys(names)), applied)


def scale_problems(scales: Mapping[str, Mapping[str, Any]]) -> Iterable[Problem]:
    """Find keys that a scale cannot set."""
    allowed = [name for name in Study.model_fields if name not in _NOT_IN_SCALES]
    for scale, values in scales.items():
        for key in values:
            if key not in allowed:
                yield Problem(f"scales.{scale}.{key}", f"a scale cannot set {key!r}. {nearest(key, allowed)}")


def _scales(values: Mapping[str, Any]) -> dict[str, Any]:
    scales = values.get("scales")
    return scales if isinstance(scales, dict) else {}


def _expand_dotted(
    values: dict[str, Any],
    parent: str,
    document: Document,
) -> None:
    """Nest the dotted keys of base and data, so that scales and overrides can be merged in."""
    for name in ("base", "data"):
        if isinstance(values.get(name), dict):
            try:
                values[name] = paths.expand(values[name])
            except ValueError as error:
                document.problems.append(Problem(paths.join(parent, name), str(error)))


def _apply_scale(
    values: dict[str, Any],
    text: str,
    document: Document,
) -> dict[str, Any]:
    scales = _scales(values)
    name = text.removeprefix("@")
    if name not in scales:
        message = f"there is no scale {text!r}. {nearest(text, [f'@{other}' for other in scales])}"
        document.problems.append(Problem("scales", message))
        return values
    scale = scales[name]
    if not isinstance(scale, dict):
        # A scale that is no mapping is reported when the study is read.
        return values
    for path, _ in paths.leaves(scale):
        _forget_lines(document, path)
    allowed = {key: value for key, value in scale.items() if key not in _NOT_IN_SCALES}
    return paths.merge(values, allowed)


def _apply_pair(
    values: dict[str, Any],
    text: str,
    document: Document,
) -> tuple[str, Any] | None:
    """Set a value; return its path and itself, or None when the text has a problem."""
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key:
        message = f"override {text!r} is neither key=value nor @scale, e.g. train.max_steps=500 or @tiny"
        document.problems.append(Problem("", message))
        return None
    # By the rules of study files, so that `key=no` and `no` in a file are the same text.
    parsed = documents.parse(raw)
    if parsed.problems:
        reason = parsed.problems[0].message
        document.problems.append(Problem(key, f"override {text!r}: {reason}; quote the value if it is text"))
        return None
    try:
        first = paths.split(key)[0]
        # People vary the system's settings, so its paths may be written without ``base``.
        path = key if first in Study.model_fields else f"base.{key}"
        if _has_levels(key, parsed.values, raw):
            _put_factor(values, path, raw)
        elif not _put_domain(values, path, parsed.values):
            paths.put(values, path, parsed.values)
    except ValueError as error:
        document.problems.append(Problem(key, f"override {text!r}: {error}"))
        return None
    _forget_lines(document, path)
    return path, parsed.values


def _has_levels(key: str, value: Any, raw: str) -> bool:
    """Tell ``a,b`` from a text with a comma, which is quoted or belongs to a field of the study."""
    is_setting = key == "seeds" or paths.split(key)[0] not in {*Study.model_fields} - {"base", "data"}
    return is_setting and isinstance(value, str) and "," in raw and raw.strip()[0] not in "\"'"


def _put_factor(
    values: dict[str, Any],
    path: str,
    raw: str,
) -> None:
    """Make a factor of ``path=a,b``, whose baseline is the first level, in place of the setting's value.

    Raises:
        ValueError: It is not clear that these are levels.
    """
    target = path.removeprefix("base.")
    if target == "seeds":
        raise ValueError(f"write seeds=[{raw}]")
    levels = raw.split(",")
    if not all(map(_LEVEL.fullmatch, levels)):
        raise ValueError(
            f"levels of a factor are words or numbers without spaces, e.g. {target}=1,2; other levels go "
            f"into factors of the study file, a text with a comma into quotes: {target}='\"{raw}\"'"
        )
    parent, _, name = path.rpartition(".")
    settings = paths.get(values, parent)
    if isinstance(settings, dict):
        settings.pop(name, None)  # no cell would read it
    if paths.get(values, f"factors.{name}") is not paths.MISSING:
        name = target.replace(".", "_")
    level_values = [documents.parse(level).values for level in levels]
    factor = {"target": target, "levels": level_values, "baseline": level_values[0]}
    paths.put(values, f"factors.{name}", factor)


def _put_domain(
    values: dict[str, Any],
    path: str,
    value: Any,
) -> bool:
    """Set a whole domain of the search, whose key is itself a dotted path; False when it is none."""
    target = path.removeprefix("search.space.")
    space = paths.get(values, "search.space")
    if target == path or not isinstance(value, dict) or not isinstance(space, dict):
        return False
    space[target] = value
    return True


def _forget_lines(document: Document, path: str) -> None:
    """Drop the lines of overridden values, which are no longer those of the file."""
    inner_paths = [
        line_path for line_path in document.lines if line_path.startswith((f"{path}.", f"{path}["))
    ]
    document.lines |= dict.fromkeys([path, *inner_paths], 0)


def _interpolated(
    values: Any,
    environ: Mapping[str, str],
    problems: list[Problem],
) -> Any:
    """Copy values with ``${env:NAME}`` put in; the first place that names an unset variable is a problem."""
    unset: set[str] = set()

    def put_in(path: str, text: str) -> str:
        for name in _VARIABLE.findall(text):
            if name not in environ and name not in unset:
                unset.add(name)
                message = f"the environment variable {name} is not set; export {name}=..."
                problems.append(Problem(path, message))
        for other in _LIKE_VARIABLE.findall(_VARIABLE.sub("", text)):
            problems.append(Problem(path, f"{other!r} is not understood; write ${{env:NAME}}"))
        return _VARIABLE.sub(lambda match: environ.get(match[1], match[0]), text)

    return documents.map_texts(values, put_in)
