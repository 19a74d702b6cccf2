"""What comes out of a toy trial, apart from records of its settings: by it the effect of a setting is judged.

Fingerprints do not count: any field that a stage's config slice has changes them, read or not.
"""

import hashlib
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from safetensors.torch import load_file

from nlgraft.basics.errors import NlgraftError, TrialFailed
from nlgraft.pipeline.stage import NullReporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import CURVES, METRICS, RecordingReporter, StageRunner
from nlgraft.study.data import paths
from nlgraft.study.data.system import System

SPLITS = ("dev", "test")
SEED = 5
"""Seed of the trial; no default seed equals it, so that a setting that selects the seed has an effect."""
_TIMES = ("_s", "_ms", "per_s")
CHOSEN = ("prlms.",)
"""Mappings of which an arm uses some entries."""

DECLARATIONS = ("declare", "metrics", "stages")
"""Parts of `trainables.command` in which a study says what it has, of no effect alone: tests/unit/command."""

_SAMPLES: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (1, 2, 3),
    float: (0.3, 0.7, 2.0),
    str: ("else", "^encoder"),
}


def of_arm(system: System, values: Mapping[str, Any]) -> System:
    """Return a system with the settings and metrics that the config of an arm declares, as a study's may."""
    return system.of_study(values.get("data"), values)


def config_of(system: System, values: Mapping[str, Any]) -> BaseModel:
    return of_arm(system, values).config_type.model_validate_json(json.dumps(values))


def graph_of(system: System, config: BaseModel) -> StageGraph:
    return system.stage_graph(config, seed=SEED, splits=SPLITS)


def changed(values: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set one setting of a config as written, as a study's factor does."""
    values = json.loads(json.dumps(values))  # unlike a deep copy, which keeps parts that two places share
    paths.put(values, path, value)
    return values


class Laboratory:
    """Runs stages in one store and compares their artifacts.

    Args:
        store: Where all trials share their stages.
    """

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._seen: dict[str, dict[str, Any]] = {}

    def content(self, stage: Stage) -> dict[str, Any]:
        """Return the weights, ids, states, text, measures and curves of a stage, which runs if need be.

        Descriptions of models, tokenizers and plans repeat settings; these show in what is made with them.
        """
        if stage.fingerprint not in self._seen:
            reporter = RecordingReporter(NullReporter())
            runner = StageRunner(self._store, reporter, is_waiting=True, distribute=None, device="cpu")
            runner.ensure(stage)
            self._seen[stage.fingerprint] = dict(_contents(self._store.fetch(stage)))
        return self._seen[stage.fingerprint]

    def first_difference(self, base: StageGraph, other: StageGraph) -> str | None:
        """Name the first stage of another trial from which something else comes out; None if all agree."""
        base_stages = {stage.name: stage for stage in base.stages}
        for stage in other.stages:
            before = base_stages.get(stage.name)
            if before == stage:
                continue
            if self.content(stage) != ({} if before is None else self.content(before)):
                return stage.name
        gone = base_stages.keys() - {stage.name for stage in other.stages}
        return next((name for name in sorted(gone) if self.content(base_stages[name])), None)


def _contents(directory: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.suffix == ".safetensors":
            for tensor, value in load_file(path).items():
                digest = hashlib.sha256(value.contiguous().flatten().view(-1).numpy().tobytes()).hexdigest()
                yield f"{name}:{tensor}", (str(value.dtype), tuple(value.shape), digest)
        elif path.suffix == ".txt":
            yield name, path.read_text("utf-8")
        elif path.name == METRICS:
            measures = json.loads(path.read_text("utf-8"))
            yield name, {key: entry["value"] for key, entry in measures.items() if not _is_time(key)}
        elif path.name == CURVES:
            curves = json.loads(path.read_text("utf-8"))
            yield name, {key: [p[:2] for p in points] for key, points in curves.items() if not _is_time(key)}


def _is_time(metric: str) -> bool:
    return metric.endswith(_TIMES)


def effect(
    laboratory: Laboratory, system: System, values: Mapping[str, Any], path: str, others: Sequence[Any]
) -> str:
    """Try other values of a setting in turn until something else comes out.

    Returns:
        The first stage that differs, ``refused`` if no other value is accepted, or ``idle``.
    """
    outcome = "refused"
    for other in others:
        try:
            base = graph_of(system, config_of(system, values))
            graph = graph_of(system, config_of(system, changed(values, path, other)))
        except (ValidationError, NlgraftError):
            continue
        if graph.fingerprint == base.fingerprint:
            outcome = "idle"
            continue
        try:
            difference = laboratory.first_difference(base, graph)
        except TrialFailed:  # e.g. a vocabulary too large for its text: refused as the stage runs
            continue
        if difference is not None:
            return difference
        outcome = "idle"
    return outcome


def leaves(model: BaseModel, parent: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted path, annotation and JSON value of every setting of a config."""
    written = model.model_dump(mode="json")  # some are left out at their defaults
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        path = f"{parent}{name}"
        if path in DECLARATIONS:
            continue
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{path}.")
            if type(None) in get_args(info.annotation):
                yield path, type(None), written.get(name, value)
        elif isinstance(value, Mapping) and any(isinstance(inner, BaseModel) for inner in value.values()):
            for key, inner in value.items():
                yield from leaves(inner, f"{path}.{key}.")
        else:
            yield path, info.annotation, written.get(name, value)


def others_of(annotation: Any, value: Any) -> Iterator[Any]:
    """Other values that a setting may take, the likely ones first."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from others_of(get_args(annotation)[0], value)
    elif origin in (Union, types.UnionType):
        for variant in get_args(annotation):
            yield from others_of(variant, value)
    elif origin is Literal:
        yield from (choice for choice in get_args(annotation) if choice != value)
    elif annotation is type(None):
        yield from () if value is None else (None,)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _instances(annotation)
    elif origin in (tuple, list, Sequence):
        if value:
            yield from ([], value[1:], value[:1], value[::-1], [*value, *value])
        yield from ([other] for other in others_of(get_args(annotation)[0], None))
    elif isinstance(value, bool) or annotation is bool:
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value * 2, value // 2)
    elif isinstance(value, float):
        yield from (value / 2, value * 2, (value + 1) / 2, 0.1, 0.999, 1e-4)
    elif annotation in _SAMPLES:
        yield from _SAMPLES[annotation]


def _instances(model: type[BaseModel]) -> Iterator[Any]:
    try:
        yield model().model_dump(mode="json")
    except ValidationError:
        return
