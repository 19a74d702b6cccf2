"""A system as the platform sees it: a typed config, its metrics and the stage graph of a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.basics.strict_config import Condition, ReadWhen, are_met
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.data.metric import Metric, further_metrics, learned_metrics
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
    """

    name: str
    path: str
    config_type: type[BaseModel]
    metrics: Mapping[str, Metric]
    description: str
    paper: str
    build: Callable[..., StageGraph]

    def stage_graph(self, config: BaseModel, *, seed: int, splits: tuple[str, ...]) -> StageGraph:
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
        if "test" in splits:
            splits = (*splits, *further_tests(dict(config)["data"]))
        try:
            graph = self.build(config, seed=seed, splits=splits)
        except DataError as error:
            from nlgraft.text.corpus_checks import data_problems

            # The error names one file; there may be more.
            problems = data_problems(dict(config)["data"])
            own = [line for line in str(error).split("\n") if not any(line in found for found in problems)]
            raise DataError("\n".join([*problems, *own])) from error
        if not isinstance(graph, StageGraph):
            raise ContractError(
                f"{self.path}.stage_graph returned a {type(graph).__name__}, not a StageGraph"
            )
        return graph

    def of_study(self, data: Any, base: Any) -> System:
        """Declare the metrics that a study adds to those of its system.

        Args:
            data: The study's ``data``, which may have further test sets: their metrics, and means over all.
            base: The study's ``base``, which may name learned metrics (``score.learned``).
        """
        metrics = {**self.metrics, **learned_metrics(base)}
        metrics |= further_metrics(metrics, tests) if (tests := further_tests(data)) else {}
        return self if metrics == self.metrics else replace(self, metrics=metrics)

    def conditions(self, path: str) -> tuple[Condition, ...]:
        """Return the conditions one of which must hold for a setting to have an effect; none: always.

        They come from ``READ_WHEN`` of the config's class and of the parts on the way to the setting. Of each
        of these classes the longest path counts; where several have conditions, each of them must be met.
        """
        found: tuple[Condition, ...] = ()
        for declared in _declarations(self.config_type):
            matching = [name for name in declared if path == name or path.startswith(f"{name}.")]
            if matching and (conditions := declared[max(matching, key=len)]):
                found = tuple({**one, **other} for one in found or ({},) for other in conditions)
        return found

    def is_read(self, path: str, config: Mapping[str, Any]) -> bool:
        """Tell if a setting has an effect in a config, as far as the system declares it.

        Args:
            path: Dotted path of the setting.
            config: The whole config as nested JSON values.
        """
        return are_met(self.conditions(path), config)

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
    own: ReadWhen = getattr(config_type, "READ_WHEN", {})
    found = [own]
    for name, field in config_type.model_fields.items():
        for part in _parts(field.annotation):
            found += [_inside(name, declared) for declared in _declarations(part)]
    return tuple(declared for declared in found if declared)


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, UnionType):
        for inner in get_args(annotation):
            yield from _parts(inner)


def _inside(name: str, declared: ReadWhen) -> ReadWhen:
    return {
        f"{name}.{path}": tuple(
            {f"{name}.{other}": allowed for other, allowed in condition.items()} for condition in conditions
        )
        for path, conditions in declared.items()
    }
