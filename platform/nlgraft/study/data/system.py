"""A system as the platform sees it: a typed config, its metrics and the stage graph of a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from nlgraft.basics.errors import ContractError, DataError, Problem
from nlgraft.basics.strict_config import Condition, ReadWhen, are_met
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.text.corpus_config import further_tests

SEARCH_SPLITS = ("dev",)
"""Splits on which search trials are scored."""
REPLICATE_SPLITS = ("dev", "test")
"""Splits on which replicates are scored."""


@dataclass(frozen=True)
class System:
    """A published transfer method in runnable form.

    Attributes:
        name: Last part of the import path.
        path: Import path of its module.
        config_type: Its typed config, which has a field ``data``.
        metrics: The metrics of its trials, by name.
        description: One sentence about the method.
        paper: Its publication.
        build: ``stage_graph`` of its module.
        keep_code: Of a system that runs code of the study's own: copies the code that a config names below a
            directory, under its digest, and returns the values that name the copy, by path in the study.
        file_problems: Finds the files that values of a config name and that cannot be used, with their paths
            in the config; the values may be wrong otherwise, and relative paths start at the directory.
        no_model: Of a system whose trials leave no model for ``nlgraft export``: where to find what they do
            leave; else empty.
    """

    name: str
    path: str
    config_type: type[BaseModel]
    metrics: Mapping[str, Metric]
    description: str
    paper: str
    build: Callable[..., StageGraph]
    keep_code: Callable[[Any, Path], dict[str, str]] | None = None
    file_problems: Callable[[Mapping[str, Any], str | None], Iterable[Problem]] = lambda *_: ()
    no_model: str = ""

    def stage_graph(
        self,
        config: BaseModel,
        *,
        seed: int,
        splits: tuple[str, ...],
    ) -> StageGraph:
        """Build the stage graph of a trial; no model is read and nothing is trained.

        Where the test split is scored, the further test sets of the data are, too.

        Args:
            config: A config of this system.
            seed: Seed of the trial.
            splits: Splits to score on: `SEARCH_SPLITS` or `REPLICATE_SPLITS`.

        Raises:
            ContractError: The system returned something else.
            DataError: Corpora are missing or unusable; lists the problems of all.
        """
        # Search trials never see a test set, further ones neither.
        if "test" in splits:
            splits = (*splits, *further_tests(dict(config)["data"]))
        try:
            graph = self.build(config, seed=seed, splits=splits)
        except DataError as error:
            from nlgraft.text.corpus_checks import data_problems

            # The error names one file; the user should see every problem of the data at once.
            problems = data_problems(dict(config)["data"])
            other_lines = [
                line for line in str(error).split("\n") if not any(line in problem for problem in problems)
            ]
            raise DataError("\n".join([*problems, *other_lines])) from error
        if not isinstance(graph, StageGraph):
            raise ContractError(
                f"{self.path}.stage_graph returned a {type(graph).__name__}, not a StageGraph"
            )
        return graph

    def of_study(self, data: Any, base: Any) -> System:
        """Declare the metrics that a study adds to those of its system, and its settings.

        Args:
            data: The study's ``data``, which may have further test sets: their metrics, and means over all.
            base: The study's ``base``, which may name learned metrics (``score.learned``), or declare
                settings and metrics where the config class has ``declared_by(base)``, which returns both.
        """
        config_type, declared = self.config_type, {}
        declared_by = getattr(config_type, "declared_by", None)
        if declared_by is not None:
            config_type, declared = declared_by(base)
        metrics = {**self.metrics, **declared, **early_metrics(declared), **learned_metrics(base)}
        tests = further_tests(data)
        if tests:
            metrics |= further_metrics(metrics, tests)
        is_same = metrics == self.metrics and config_type is self.config_type
        return self if is_same else replace(self, config_type=config_type, metrics=metrics)

    def conditions(self, path: str) -> tuple[Condition, ...]:
        """Return the conditions one of which must hold for a setting to have an effect; none: always.

        They come from ``READ_WHEN`` of the config's class and of the parts on the way to the setting. Of each
        of these classes the longest path counts; where several have conditions, each of them must be met.
        """
        combined = ()
        for declared in _declarations(self.config_type):
            matching = [name for name in declared if path == name or path.startswith(f"{name}.")]
            if not matching:
                continue
            conditions = declared[max(matching, key=len)]
            if conditions:
                # Every class has a say, so that each of its conditions meets each of the earlier ones.
                combined = tuple(
                    {**earlier, **condition} for earlier in combined or ({},) for condition in conditions
                )
        return combined

    def is_read(self, path: str, config: Mapping[str, Any]) -> bool:
        """Return True if a setting has an effect in a config, as far as the system declares it.

        Args:
            path: Dotted path of the setting.
            config: The whole config as nested JSON values.
        """
        return are_met(self.conditions(path), config)

    def read_params(self, params: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the searched values that have an effect in the config of their trial."""
        # Of a value that another one keeps from being read, a search says nothing.
        return {path: value for path, value in params.items() if self.is_read(path, config)}

    def validate(self, values: Mapping[str, Any], directory: str | None = None) -> BaseModel:
        """Build the config from nested JSON values, strict about types.

        With ``directory``, relative paths to input files become absolute, starting there.

        Raises:
            ValidationError: The config refuses the values.
        """
        # Validated as JSON: as strict (true is not 1, nor is "1"), yet lists are read into tuples.
        context = {"directory": directory}
        return self.config_type.model_validate_json(canonical_json(values), strict=True, context=context)


@cache
def _declarations(config_type: type[BaseModel]) -> tuple[ReadWhen, ...]:
    """Collect ``READ_WHEN`` of a config and of its parts, with paths that start at the config."""
    class_conditions: ReadWhen = getattr(config_type, "READ_WHEN", {})
    declarations = [class_conditions]
    for name, config_field in config_type.model_fields.items():
        for part in parts_of(config_field.annotation):
            declarations += [_inside(name, declared) for declared in _declarations(part)]
    return tuple(declared for declared in declarations if declared)


def parts_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the configs that a field may hold, each alternative of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, UnionType):
        for inner in get_args(annotation):
            yield from parts_of(inner)


def _inside(name: str, declared: ReadWhen) -> ReadWhen:
    return {
        f"{name}.{path}": tuple(
            {f"{name}.{other}": allowed for other, allowed in condition.items()} for condition in conditions
        )
        for path, conditions in declared.items()
    }


# Metrics that a system reports.


CURVE = "dev/loss"
AREA = f"{CURVE}.auc"
STEPS = f"{CURVE}.steps_to_baseline"
TEST_MEAN = "tests"
"""In the place of a split: the mean over all test sets."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Meaning of one number that the trials of a system report.

    Attributes:
        direction: The better direction.
        unit: Unit of the value, e.g. ``BLEU points``, ``nats``, ``s``.
        split: Split it is computed on; None for a value without one, such as a number of parameters.
        is_time: True for times and speeds, which differ from run to run.
        is_fixed: True for values that config and data determine without training: a number of parameters,
            the length of the references.
        is_derived: True for values computed when results are read: from the learning curves of several
            trials, or from several test sets.
        is_tracked: True for values that a training of the trial's own model reports after each evaluation, so
            that it can be stopped by them. Of a system that marks none, any may be.
        counted_by: The fixed metric that counts the units which the value averages over, if their number
            depends on the vocabulary. Cells are compared only where it is equal.
        description: What is measured.
    """

    direction: Literal["maximize", "minimize"]
    unit: str
    split: Literal["dev", "test"] | None
    is_time: bool = False
    is_fixed: bool = False
    is_derived: bool = False
    is_tracked: bool = False
    counted_by: str = ""
    description: str = ""


def early_metrics(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Describe the metrics of early learning; none unless the system reports a dev loss as it trains."""
    if CURVE not in metrics:
        return {}
    early = partial(
        Metric,
        direction="minimize",
        split="dev",
        is_derived=True,
        counted_by=metrics[CURVE].counted_by,
    )
    return {
        AREA: early(
            unit=metrics[CURVE].unit,
            description="Mean of the dev loss over the steps that all trials of the study trained: the area "
            "under its curve by its length.",
        ),
        STEPS: early(
            unit="steps",
            description="Steps until the dev loss is as low as the baseline's best with the same seed; all "
            "steps where it never is, which favours slow cells.",
        ),
    }


def further_metrics(metrics: Mapping[str, Metric], tests: Sequence[str]) -> dict[str, Metric]:
    """Describe the metrics of further test sets, ``test_NAME/bleu``, and means over all, ``tests/bleu``."""
    on_test = {name: metric for name, metric in metrics.items() if metric.split == "test"}
    by_name = {on_split(name, split): metric for split in tests for name, metric in on_test.items()}
    for name, metric in on_test.items():
        if not metric.is_time:
            description = f"Mean over {1 + len(tests)} test sets. {metric.description}"
            by_name[on_split(name, TEST_MEAN)] = replace(metric, is_derived=True, description=description)
    return by_name


def learned_metrics(base: Any) -> dict[str, Metric]:
    """Describe the learned metrics that a study names in ``base``, e.g. ``dev/learned.comet``."""
    entries: Any = base
    for key in ("score", "learned"):
        entries = entries.get(key) if isinstance(entries, Mapping) else None
    splits: tuple[Literal["dev", "test"], ...] = ("dev", "test")
    return {
        f"{split}/learned.{name}": Metric(
            direction="minimize" if entry.get("direction") == "minimize" else "maximize",
            unit=str(entry.get("unit", "points")),
            split=split,
            description=f"Mean over segments of {entry.get('metric')}.",
        )
        for split in splits
        for name, entry in (entries.items() if isinstance(entries, Mapping) else ())
        if isinstance(entry, Mapping)
    }


def on_split(name: str, split: str) -> str:
    """Name a metric of the test set on another split: ``test/bleu``, or ``lead/test_bleu`` with a prefix."""
    first, _, metric = name.partition("/")
    return f"{split}/{metric}" if first == "test" else f"{first}/{split}{metric.removeprefix('test')}"


# Findings of the checks that look at the data of a study before anything runs.


@dataclass
class Findings:
    """Findings about the data of a study, to which one check after the other adds.

    Attributes:
        stages: All stages of the study, inputs first, those that the store holds among them.
        corpora: Counts of each split, of text in local files and constructed text, by the name of the corpus
            stage; a number from 2 follows it where cells read different corpora by that name.
        warnings: Descriptions of data that are allowed but probably a mistake.
        problems: Descriptions of data that cannot be used.
        read: Content that a check has read, by the fingerprint of its stage, for checks of later stages.
    """

    stages: Sequence[Stage] = ()
    corpora: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    read: dict[str, Any] = field(default_factory=dict, repr=False)

    def warn(self, stage: Stage, lines: Iterable[str]) -> None:
        """Add warnings, each with the name of the stage."""
        self.warnings += [f"{stage.name}: {line}" for line in lines]

    def refuse(self, stage: Stage, lines: Iterable[str]) -> None:
        """Add problems, each with the name of the stage."""
        self.problems += [f"{stage.name}: {line}" for line in lines]
