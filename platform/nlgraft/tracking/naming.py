"""MLflow's limits on names and values, and how ours are fitted into them."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nlgraft.pipeline.stage import StageGraph

MAX_KEY_CHARS = 250
MAX_PARAM_CHARS = 6000
MAX_TAG_CHARS = 8000
DISTINCT_CHARS = 10
"""MLflow's parallel coordinates show this much of a value; levels must differ within it."""

_NOT_IN_NAMES = re.compile(r"[^\w./ :-]")


def metric_name(name: str) -> str:
    """Fit a name into what MLflow takes as the key of a metric, parameter or tag.

    Args:
        name: Any text.

    Returns:
        The name, other characters than letters, digits and ``_ - . / :`` and space replaced by ``_``; a name
        that is too long ends in a digest, so that two long names stay two.
    """
    fitted = posixpath.normpath(_NOT_IN_NAMES.sub("_", name).strip("/ ") or "_")
    if fitted.startswith("."):
        fitted = "_" + fitted.lstrip("./")
    if len(fitted) > MAX_KEY_CHARS:
        fitted = f"{fitted[: MAX_KEY_CHARS - 13]}~{_digest(name)[:12]}"
    return fitted


def tag_value(text: str) -> str:
    """Fit a text into a tag.

    Args:
        text: Any text.

    Returns:
        The text, shortened with a mark when it is over MLflow's limit.
    """
    mark = "\n... (shortened; the whole text is among the artifacts)"
    return text if len(text) <= MAX_TAG_CHARS else text[: MAX_TAG_CHARS - len(mark)] + mark


def value_text(value: Any) -> str:
    """Write a JSON value as people would: text bare, the rest as JSON.

    Args:
        value: A JSON value.

    Returns:
        ``"adam"`` becomes ``adam``, ``None`` becomes ``null``, ``0.1`` becomes ``0.1``.
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Write a nested config under dotted keys.

    Args:
        config: Nested mappings; lists stay whole.
        prefix: What every key begins with.

    Returns:
        Text by dotted key.
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value_text(value)
    return flat


def split_params(params: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Part parameters into those that MLflow takes and those that are too long for it.

    Args:
        params: Text by name.

    Returns:
        The parameters with fitting names, a value that is too long replaced by its digest; and those long
        values, as text artifacts by path.
    """
    fitted: dict[str, str] = {}
    texts: dict[str, str] = {}
    for name, value in params.items():
        key = metric_name(name)
        if len(value) > MAX_PARAM_CHARS:
            texts[f"params/{key.replace('/', '_')}.txt"] = value
            value = f"sha256:{_digest(value)}"
        fitted[key] = value
    return fitted, texts


def distinct_levels(levels: Iterable[Any]) -> dict[str, str]:
    """Name the levels of a factor so that their first ten characters tell them apart.

    Args:
        levels: The levels, in the order of the study; repeats are welcome.

    Returns:
        By each level's text the text to show: the same one, or numbered where two begin alike.
    """
    texts = list(dict.fromkeys(value_text(level) for level in levels))
    if len({text[:DISTINCT_CHARS] for text in texts}) == len(texts):
        return {text: text for text in texts}
    return {text: f"{number} {text}" for number, text in enumerate(texts, start=1)}


def upstream_trainings(graph: StageGraph) -> frozenset[str]:
    """Name the stages whose curves a trial's record will call by their stage, before there is a record.

    In a record the deepest stage that writes ``train/loss`` keeps that name. While a trial runs nobody knows
    which stages will write it; those that may run on a worker group are the trainings.

    Args:
        graph: The trial's stages.

    Returns:
        Names of all trainings but the deepest.
    """
    trainings = sorted((stage for stage in graph.stages if stage.is_distributed), key=graph.depth)
    return frozenset(stage.name for stage in trainings[:-1])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
