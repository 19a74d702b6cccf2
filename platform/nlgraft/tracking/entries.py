"""The intended content of MLflow runs: plain data, built before anything is sent and safe to send twice."""

from __future__ import annotations

import hashlib
import json
import logging
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from nlgraft.basics.errors import NlgraftError
from nlgraft.pipeline.fingerprint import dotted
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
"""MLflow's run states, as far as nlgraft uses them."""

Fill: TypeAlias = Callable[[Path], None]
"""Writes files into a directory; called only if they are needed."""

IsRead: TypeAlias = Callable[[str, Mapping[str, Any]], bool]
"""Tells if a setting, given by its dotted path, has an effect in a config."""

MAX_POINTS = 50_000
"""Most points of one run to keep while a server is unreachable; the trial's record restores older ones."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """Identity of a run within a study; two cells may hold the same trial, hence not the fingerprint alone.

    Attributes:
        kind: ``study``, ``cell`` or ``trial``.
        cell: Label of the cell; empty for the study's own run.
        fingerprint: Value of the tag ``nlgraft.fingerprint``.
    """

    kind: str
    cell: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric.

    Attributes:
        key: Name, e.g. ``dev/bleu``.
        value: The value; NaN and infinities are allowed.
        timestamp_ms: When it was measured, Unix milliseconds.
        step: Optimiser step.
    """

    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True, kw_only=True)
class TrackedDataset:
    """One dataset that a run reads.

    Attributes:
        name: E.g. ``multi30k/train``.
        digest: Digest of the bytes; MLflow keeps the first 36 characters.
        source: Paths, a hub name, or the generator's settings, as JSON.
        context: ``train``, ``dev`` or ``test``.
        source_type: ``files``, ``huggingface``, ``sacrebleu`` or ``conlang``.
        profile: Counts to show, e.g. ``{"segments": 20000}``.
    """

    name: str
    digest: str
    source: str
    context: str
    source_type: str
    profile: Mapping[str, Any]


@dataclass(frozen=True)
class BestModel:
    """The trial whose model is logged for serving.

    Attributes:
        find: Returns the local artifact directory with ``predictor.json``, or None if the trial has none.
    """

    fingerprint: str
    find: Callable[[], Path | None]


@dataclass(kw_only=True)
class RunEntry:
    """The intended content of a run. Entries of one key can be merged; writing one twice changes nothing.

    Attributes:
        parent: The run it nests under.
        name: Run name.
        started_ms: Start, Unix milliseconds.
        params: Parameters to set; MLflow keeps the first value of each.
        curve: Points of learning curves; equal values of a step are written once.
        results: Final values; written if they differ from the run's newest value.
        texts: Text artifacts by path.
        files: Writes file artifacts.
        status: New state of the run; None leaves it unchanged.
        ended_ms: End, Unix milliseconds.
        model: Model to log beside the run.
        experiment_tags: Tags of the experiment to set.
        digest: Digest of a final entry: an ended run that carries it already holds everything.
        build: Builds the whole content of the run, over which these fields take precedence; called only if
            the run lacks it, because building takes longer than finding that out.
    """

    key: RunKey
    parent: RunKey | None = None
    name: str = ""
    started_ms: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    curve: list[Point] = field(default_factory=list)
    results: list[Point] = field(default_factory=list)
    datasets: tuple[TrackedDataset, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    files: Fill | None = None
    status: Status | None = None
    ended_ms: int | None = None
    model: BestModel | None = None
    experiment_tags: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    build: Callable[[], RunEntry] | None = None

    def merge(self, newer: RunEntry) -> RunEntry:
        """Combine this entry with a newer one of the same run, which wins where they differ."""
        if newer.build is not None:
            # Its content will be complete, except for curve points reported meanwhile.
            return replace(newer, curve=self.curve[-MAX_POINTS:] + newer.curve)
        return RunEntry(
            key=self.key,
            parent=newer.parent or self.parent,
            name=newer.name or self.name,
            started_ms=self.started_ms or newer.started_ms,
            tags=self.tags | newer.tags,
            params=self.params | newer.params,
            curve=self.curve[-MAX_POINTS:] + newer.curve,
            results=newer.results or self.results,
            datasets=newer.datasets or self.datasets,
            texts=self.texts | newer.texts,
            files=newer.files or self.files,
            status=newer.status or self.status,
            ended_ms=newer.ended_ms if newer.status else self.ended_ms,
            model=newer.model or self.model,
            experiment_tags=self.experiment_tags | newer.experiment_tags,
            digest=newer.digest if newer.status else self.digest,
            build=self.build,
        )

    def built(self) -> RunEntry:
        """Return the entry with the content that its builder gives."""
        if self.build is None:
            return self
        return self.build().merge(replace(self, build=None))


# Files of a trial that are logged to MLflow, and the artifact of its model.


_log = logging.getLogger("nlgraft.tracking")

SCORED = "metrics.json"
"""File of an artifact that holds scores; its other texts are logged beside it."""

PREDICTOR = "predictor.json"
"""File of an artifact that holds a model that can be served."""

MAX_FILE_BYTES = 64 * 2**20


def copy_scored_files(graph: StageGraph, store: ArtifactStore, target: Path) -> None:
    """Copy hypotheses, references, scores and segment statistics of a trial.

    Args:
        target: Directory for the files: those of the last stage directly, others below their stage's name.
    """
    for stage in graph.stages:
        try:
            manifest = store.manifest(stage)
            if manifest is None or SCORED not in manifest.files:
                continue
            folder = target if stage is graph.result else target / stage.name
            for name, entry in manifest.files.items():
                is_logged = Path(name).suffix in (".txt", ".json") or name.startswith("segments-")
                if not is_logged or entry.bytes > MAX_FILE_BYTES:
                    continue
                content = store.read_file(stage, name)
                if content is not None:
                    path = folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
        except NlgraftError as error:
            _log.warning("files of stage %s cannot be logged to MLflow: %s", stage.name, error)


def find_model(graph: StageGraph, store: ArtifactStore) -> Path | None:
    """Fetch the artifact of the last stage of a trial that has a ``predictor.json``; None if no stage has."""
    for stage in reversed(graph.stages):
        manifest = store.manifest(stage)
        if manifest is not None and PREDICTOR in manifest.files:
            return store.fetch(stage)
    return None


# Names and values within MLflow's limits.


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
    if len(text) <= MAX_TAG_CHARS:
        return text
    return text[: MAX_TAG_CHARS - len(mark)] + mark


def value_text(value: Any) -> str:
    """Format a JSON value: text without quotes, everything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


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
    ``train/loss``.
    """
    trainings = sorted((stage for stage in graph.stages if stage.is_training), key=graph.depth)
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
INTERVAL = "nlgraft.interval"
IMPORTANT_SETTINGS = "nlgraft.mattered"
