"""The base of all parts of a study; names and durations."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from nlgraft.basics.strict_config import StrictConfig

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
MAX_NAME_LENGTH = 250
"""Longest run name that MLflow keeps."""

_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_AMOUNT = r"(\d+(?:\.\d+)?)"
_SPOKEN = re.compile(rf"(?:{_AMOUNT}d)?(?:{_AMOUNT}h)?(?:{_AMOUNT}m)?(?:{_AMOUNT}s)?")


class Part(StrictConfig):
    """A part of a study: immutable, without unknown keys, strict about types (true is not 1)."""

    model_config = ConfigDict(strict=True)


def check_name(name: str) -> str:
    """Refuse names that directories, tracking servers or shells would mangle.

    Raises:
        ValueError: Tells which names are allowed.
    """
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"the name has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed")
    if not _NAME.fullmatch(name) or ".." in name:
        raise ValueError(
            f"{name!r} is no usable name: begin with a letter, digit or '_', go on with those, "
            "'.', '+' or '-', and do not write '..'"
        )
    return name


def parse_duration(value: Any) -> float:
    """Convert a duration to seconds: a number, or text such as ``2h30m``, ``90s``.

    Raises:
        ValueError: It is not a duration, or not a positive one.
    """
    allowed = "allowed: seconds above 0, '2h30m', '90s' or '1d12h'"
    # A bool is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a duration; {allowed}")
    if isinstance(value, str):
        match = _SPOKEN.fullmatch(value.strip())
        # Each amount is optional, so that the empty text matches as well.
        if not match or not any(match.groups()):
            raise ValueError(f"{value!r} is not a duration; {allowed}")
        amounts = [float(amount or 0) for amount in match.groups()]
        units = _UNITS_S.values()
        seconds = sum(amount * unit for amount, unit in zip(amounts, units, strict=True))
    else:
        seconds = float(value)
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"{value!r} is not a positive duration; {allowed}")
    return seconds


Name = Annotated[str, AfterValidator(check_name)]

Duration = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(parse_duration),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}],
            "examples": ["2h30m", 9000],
        }
    ),
]
