r"""Every number of a result as a LaTeX macro, ``\nlgraft{study.cell.metric.mean}``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from nlgraft.analysis.data.provenance import Cost
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.tables import (
    column_decimals,
    compared_metrics,
    confidence,
    numbers_of_seeds,
)
from nlgraft.analysis.rendering.typesetting import (
    NOTHING,
    escape_latex,
    number,
    probability,
)

_DEFINITION = r"""% Numbers by name: \nlgraft{KEY}. A name that is not defined stops the compilation.
\providecommand{\nlgraft}[1]{\ifcsname nlgraft@#1\endcsname\csname nlgraft@#1\endcsname
  \else\errmessage{nlgraft: no number named #1; see numbers.tex}\fi}
"""


class Numbers(dict[str, str]):
    """Numbers of one study as LaTeX by key, without the study's name.

    Args:
        result: The result.
        cost: What it took.
        sizes: Examples by corpus and split.
    """

    def __init__(self, result: RecordedResults, cost: Cost, sizes: Mapping[str, Mapping[str, int]]) -> None:
        self._study = slug(result.study.variant)
        keyed = dict(chain(_of_study(result, cost), _of_cells(result)))
        for corpus, splits in sizes.items():
            keyed |= {f"examples.{slug(corpus)}.{slug(split)}": f"{num:,}" for split, num in splits.items()}
        keyed |= {f"claim.{index}.verdict": claim.text for index, claim in enumerate(result.claims, start=1)}
        super().__init__({key: escape_latex(text) for key, text in keyed.items()})

    def macro(self, key: str) -> str:
        r"""Return the macro of a number; the study's name is in it, so that a paper may hold several.

        Raises:
            KeyError: There is no such number.
        """
        self[key]
        return rf"\nlgraft{{{self._study}.{key}}}"

    def render(self) -> str:
        """Write the definitions."""
        lines = [
            rf"\expandafter\def\csname nlgraft@{self._study}.{key}\endcsname{{{value}}}"
            for key, value in self.items()
        ]
        return _DEFINITION + "\n".join(lines) + "\n"


def _of_study(result: RecordedResults, cost: Cost) -> Iterator[tuple[str, str]]:
    states = [trial.state for trial in result.trials]
    resources = result.study.resources
    facts = {
        "cells": len(result.cells),
        "trials": len(result.trials),
        "trials.search": sum(trial.kind == "search" for trial in result.trials),
        **{f"trials.{state}": states.count(state) for state in ("finished", "failed", "stopped")},
        "resamples": result.samples,
    }
    yield from ((key, f"{value:,}") for key, value in facts.items())
    yield "seeds", numbers_of_seeds(result)
    yield "alpha", f"{result.study.analysis.alpha:g}"
    yield "confidence", confidence(result.study.analysis.alpha)
    shares = {"worker": 1.0, "cpu": resources.cpus_per_worker, "gpu": resources.gpus_per_worker}
    for part, seconds in {"": cost.total_s, ".search": cost.search_s, ".lost": cost.lost_s}.items():
        for unit, share in shares.items():
            yield f"{unit}-hours{part}", hours_text(seconds * share * resources.max_workers)


def _of_cells(result: RecordedResults) -> Iterator[tuple[str, str]]:
    """Yield by metric the means, and the differences from the baseline where reports compare it."""
    compared = {result.main_metric, *compared_metrics(result)}
    labels, metrics = unique_slugs(cell.label for cell in result.cells), unique_slugs(result.metrics)
    for metric in result.metrics:
        decimals = column_decimals(result, metric)
        for cell in result.cells:
            key = f"{labels[cell.label]}.{metrics[metric]}"
            yield f"{key}.mean", number(cell.mean(metric), decimals)
            yield f"{key}.std", number(cell.std(metric), decimals)
            yield f"{key}.n", str(len(cell.measured(metric)))
            if cell is result.baseline or metric not in compared:
                continue
            comparison = result.compare(cell.cell, metric=metric)
            low, high = comparison.ci or (None, None)
            for name, value in (("difference", comparison.difference), ("low", low), ("high", high)):
                yield f"{key}.{name}", number(value, decimals, is_signed=True)
            for name in ("p", "p_holm", "p_segments"):
                yield f"{key}.{name.replace('_', '-')}", probability(getattr(comparison, name))
            yield f"{key}.detectable", number(comparison.smallest_detectable, decimals)
            needed = comparison.seeds_needed
            yield f"{key}.seeds-needed", NOTHING if needed is None else f"{needed:,}"
            yield f"{key}.verdict", comparison.verdict


def hours_text(seconds: float) -> str:
    """Format a time in hours."""
    hours = seconds / 3600
    if hours < 0.005:
        return "< 0.01" if hours else "0"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 10 else f"{hours:.2f}"


def slug(text: str) -> str:
    """Reduce a text to lower-case letters, digits and single hyphens, safe in a macro's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def unique_slugs(labels: Iterable[str]) -> dict[str, str]:
    """Reduce labels so that no two are alike."""
    slugs: dict[str, str] = {}
    for label in labels:
        short, taken = slug(label), set(slugs.values())
        suffixes = ["", *(f"-{index}" for index in range(2, len(slugs) + 2))]
        slugs[label] = next(short + suffix for suffix in suffixes if short + suffix not in taken)
    return slugs
