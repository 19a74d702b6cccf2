"""A system as the platform sees it: a typed config, its metrics and the stage graph of a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from nlgraft.errors import ContractError
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.data.metric import Metric, further_metrics
from nlgraft.text.config import further_tests

SEARCH_SPLITS = ("dev",)
"""Splits on which search trials are scored."""
REPLICATE_SPLITS = ("dev", "test")
"""Splits on which replicates are scored."""

GIVEN = "given"
"""In a condition: any value but null."""
Condition = Mapping[str, tuple[Any, ...]]
"""Paths of settings, each with the values that it must have."""


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
            DataError: A corpus is missing or unusable.
        """
        if "test" in splits:
            splits = (*splits, *further_tests(dict(config)["data"]))
        graph = self.build(config, seed=seed, splits=splits)
        if not isinstance(graph, StageGraph):
            raise ContractError(
                f"{self.path}.stage_graph returned a {type(graph).__name__}, not a StageGraph"
            )
        return graph

    def with_tests_of(self, data: Any) -> System:
        """Declare the metrics of further test sets in a study's ``data``, and the means over all."""
        tests = further_tests(data)
        if not tests:
            return self
        return replace(self, metrics={**self.metrics, **further_metrics(self.metrics, tests)})

    def conditions(self, path: str) -> tuple[Condition, ...]:
        """Return the conditions one of which must hold for a setting to have an effect; none: always.

        They come from ``READ_WHEN`` of the config's class: path of a setting or a part -> conditions. The
        longest path counts.
        """
        declared: Mapping[str, tuple[Condition, ...]] = getattr(self.config_type, "READ_WHEN", {})
        matching = [name for name in declared if path == name or path.startswith(f"{name}.")]
        return declared[max(matching, key=len)] if matching else ()

    def is_read(self, path: str, config: Mapping[str, Any]) -> bool:
        """Tell if a setting has an effect in a config, as far as the system declares it.

        Args:
            path: Dotted path of the setting.
            config: The whole config as nested JSON values.
        """
        conditions = self.conditions(path)
        return not conditions or any(
            all(_has(config, name, allowed) for name, allowed in condition.items())
            for condition in conditions
        )

    def validate(self, values: Mapping[str, Any], directory: str | None = None) -> BaseModel:
        """Build the config from nested JSON values, strict about types.

        With ``directory``, relative paths to input files become absolute, starting there.

        Raises:
            ValidationError: The config refuses the values.
        """
        # JSON mode is strict where it counts (true is not 1, "1" is not 1) yet reads lists into tuples.
        context = {"directory": directory}
        return self.config_type.model_validate_json(canonical_json(values), strict=True, context=context)


def _has(config: Any, path: str, allowed: tuple[Any, ...]) -> bool:
    for part in path.split("."):
        config = config[part] if isinstance(config, Mapping) else None
    return config in allowed or (GIVEN in allowed and config is not None)
