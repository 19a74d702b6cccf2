"""Names and values within MLflow's limits."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nlgraft.pipeline.fingerprint import dotted

if TYPE_CHECKING:
    from nlgraft.pipeline.stage import StageGraph


MAX_KEY_CHARS = 250
MAX_PARAM_CHARS = 6000
MAX_TAG_CHARS = 8000
DISTINCT_CHARS = 10
"""MLflow's parallel coordinates cut values to this length; levels must differ within it."""

_NOT_IN_NAMES = re.compile(r"[^\w./ :-]")


def metric_name(name: str) -> str:
    """Turn a name into a valid key of an MLflow metric, parameter or tag.

    Characters other than letters, digits, ``_ - . / :`` and space become ``_``. An overlong name is cut and
    ends in a digest, so that two long names remain distinct.
    """
    fitted = posixpath.normpath(_NOT_IN_NAMES.sub("_", name).strip("/ ") or "_")
    if fitted.startswith("."):
        fitted = "_" + fitted.lstrip("./")
    if len(fitted) > MAX_KEY_CHARS:
        fitted = f"{fitted[: MAX_KEY_CHARS - 13]}~{_digest(name)[:12]}"
    return fitted


def tag_value(text: str) -> str:
    """Cut a text to MLflow's limit for tags, with a mark where it was cut."""
    mark = "\n... (shortened; the full text is among the artifacts)"
    return text if len(text) <= MAX_TAG_CHARS else text[: MAX_TAG_CHARS - len(mark)] + mark


def value_text(value: Any) -> str:
    """Format a JSON value: text without quotes, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """Flatten a nested config to text by dotted key; lists stay whole."""
    return {path: value_text(value) for path, value in dotted(config)}


def split_params(params: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Separate overlong values from parameters.

    Returns:
        The parameters under valid names, overlong values replaced by their digests; and those values as text
        artifacts by path.
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
    """Name the levels of a factor so that their first ten characters differ.

    Args:
        levels: The levels in the order of the study; may repeat.

    Returns:
        Text to show by each level's text: the same, or with a number in front if two levels begin alike.
    """
    texts = list(dict.fromkeys(value_text(level) for level in levels))
    if len({text[:DISTINCT_CHARS] for text in texts}) == len(texts):
        return {text: text for text in texts}
    return {text: f"{number} {text}" for number, text in enumerate(texts, start=1)}


def upstream_trainings(graph: StageGraph) -> frozenset[str]:
    """Name the training stages of a trial except the deepest: their curves carry the stage's name.

    A trial's record prefixes them in the same way. While a trial runs, it is unknown which stages will write
    ``train/loss``; the stages that may run on a worker group are taken to be the trainings.
    """
    trainings = sorted((stage for stage in graph.stages if stage.is_distributed), key=graph.depth)
    return frozenset(stage.name for stage in trainings[:-1])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Names of the tags by which runs are found and distinguished in MLflow.


FINGERPRINT = "nlgraft.fingerprint"
KIND = "nlgraft.kind"
DIGEST = "nlgraft.digest"
CELL = "nlgraft.cell"
STUDY = "nlgraft.study"
STUDY_FINGERPRINT = "nlgraft.study_fingerprint"
STORE = "nlgraft.store"
STATE = "nlgraft.state"
END_REASON = "nlgraft.end_reason"
REGISTRATION = "nlgraft.registration"
ANALYSES = "nlgraft.analyses"
NOTE = "mlflow.note.content"
VERDICT = "nlgraft.verdict"
IMPORTANT_SETTINGS = "nlgraft.mattered"
