"""Metrics that a system reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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
    return {
        AREA: Metric(
            direction="minimize",
            unit=metrics[CURVE].unit,
            split="dev",
            is_derived=True,
            counted_by=metrics[CURVE].counted_by,
            description="Mean of the dev loss over the steps that all trials of the study trained: the area "
            "under its curve by its length.",
        ),
        STEPS: Metric(
            direction="minimize",
            unit="steps",
            split="dev",
            is_derived=True,
            counted_by=metrics[CURVE].counted_by,
            description="Steps until the dev loss is as low as the baseline's best with the same seed; all "
            "steps where it never is, which favours slow cells.",
        ),
    }


def further_metrics(metrics: Mapping[str, Metric], tests: Sequence[str]) -> dict[str, Metric]:
    """Describe the metrics of further test sets, ``test_NAME/bleu``, and means over all, ``tests/bleu``."""
    on_test = {name: metric for name, metric in metrics.items() if metric.split == "test"}
    found = {on_split(name, split): metric for split in tests for name, metric in on_test.items()}
    for name, metric in on_test.items():
        if not metric.is_time:
            what = f"Mean over {1 + len(tests)} test sets. {metric.description}"
            found[on_split(name, TEST_MEAN)] = replace(metric, is_derived=True, description=what)
    return found


def learned_metrics(base: Any) -> dict[str, Metric]:
    """Describe the learned metrics that a study names in ``base``, e.g. ``dev/learned.comet``."""
    found: Any = base
    for key in ("score", "learned"):
        found = found.get(key) if isinstance(found, Mapping) else None
    splits: tuple[Literal["dev", "test"], ...] = ("dev", "test")
    return {
        f"{split}/learned.{name}": Metric(
            direction="minimize" if one.get("direction") == "minimize" else "maximize",
            unit=str(one.get("unit", "points")),
            split=split,
            description=f"Mean over segments of {one.get('metric')}.",
        )
        for split in splits
        for name, one in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(one, Mapping)
    }


def on_split(name: str, split: str) -> str:
    """Name a metric of the test set on another split: ``test/bleu``, or ``lead/test_bleu`` with a prefix."""
    first, _, rest = name.partition("/")
    return f"{split}/{rest}" if first == "test" else f"{first}/{split}{rest.removeprefix('test')}"
