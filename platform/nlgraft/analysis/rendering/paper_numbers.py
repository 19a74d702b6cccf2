r"""Every number of a result as a LaTeX macro, ``\nlgraft{study.cell.metric.mean}``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nlgraft.analysis.data.provenance import Cost
from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.analysis.rendering.typesetting import (
    NOTHING,
    escape_latex,
    num_decimals,
    number,
    probability,
)

_DEFINITION = r"""% Numbers by name: \nlgraft{KEY}. A name that is not defined stops the compilation.
\providecommand{\nlgraft}[1]{\ifcsname nlgraft@#1\endcsname\csname nlgraft@#1\endcsname
  \else\errmessage{nlgraft: no number named #1; see numbers.tex}\fi}
"""


class Numbers:
    """Numbers of one study by key, which begins with its name so that a paper may hold several.

    Args:
        result: The result.
        compared: Metrics that the report compares with the baseline.
        cost: What it took.
        sizes: Examples by corpus and split.
    """

    def __init__(
        self,
        result: ComparedResults,
        compared: Iterable[str],
        cost: Cost,
        sizes: dict[str, dict[str, int]],
    ) -> None:
        self._study = slug(result.study.variant)
        self._by_key: dict[str, str] = {}
        self._add_study(result, cost)
        for corpus, splits in sizes.items():
            for split, examples in splits.items():
                self._add(f"examples.{slug(corpus)}.{slug(split)}", f"{examples:,}")
        self._slugs = unique_slugs(cell.cell.label for cell in result.cells)
        self._metrics = unique_slugs(result.metrics)
        for metric in result.metrics:
            self._add_scores(result, metric)
        for metric in compared:
            self._add_differences(result, metric)
        for index, claim in enumerate(result.claims, start=1):
            self._add(f"claim.{index}.verdict", claim.text)

    def macro(self, key: str) -> str:
        r"""Return the LaTeX of a number by its key without the study's name.

        Raises:
            KeyError: There is no such number.
        """
        whole = f"{self._study}.{key}"
        self._by_key[whole]
        return rf"\nlgraft{{{whole}}}"

    def render(self) -> str:
        """Write the definitions."""
        lines = [
            rf"\expandafter\def\csname nlgraft@{key}\endcsname{{{value}}}"
            for key, value in self._by_key.items()
        ]
        return _DEFINITION + "\n".join(lines) + "\n"

    def _add(self, key: str, text: str) -> None:
        self._by_key[f"{self._study}.{key}"] = escape_latex(text)

    def _add_study(self, result: ComparedResults, cost: Cost) -> None:
        states = [trial.state for trial in result.trials]
        searched = [trial for trial in result.trials if trial.kind == "search"]
        resources, settings = result.study.resources, result.study.analysis
        hours = {"worker": 1.0, "cpu": resources.cpus_per_worker, "gpu": resources.gpus_per_worker}
        facts: dict[str, float] = {
            "cells": len(result.cells),
            "trials": len(result.trials),
            "trials.search": len(searched),
            **{f"trials.{state}": states.count(state) for state in ("finished", "failed", "stopped")},
            "resamples": result.samples,
        }
        for key, value in facts.items():
            self._add(key, f"{value:,}")
        self._add("seeds", numbers_of_seeds(result))
        self._add("alpha", f"{settings.alpha:g}")
        self._add("confidence", f"{100 * (1 - settings.alpha):g} %")
        for part, seconds in {"": cost.total_s, ".search": cost.search_s, ".lost": cost.lost_s}.items():
            for unit, share in hours.items():
                self._add(f"{unit}-hours{part}", hours_text(seconds * share * resources.max_workers))

    def _add_scores(self, result: ComparedResults, metric: str) -> None:
        decimals = num_decimals(cell.mean(metric) for cell in result.cells)
        for cell in result.cells:
            key = f"{self._slugs[cell.cell.label]}.{self._metrics[metric]}"
            self._add(f"{key}.mean", number(cell.mean(metric), decimals))
            self._add(f"{key}.std", number(cell.std(metric), decimals))
            self._add(f"{key}.n", str(len(cell.measured(metric))))

    def _add_differences(self, result: ComparedResults, metric: str) -> None:
        decimals = num_decimals(cell.mean(metric) for cell in result.cells)
        for cell in result.cells[1:]:
            comparison = result.compare(cell.cell, metric=metric)
            low, high = comparison.ci or (None, None)
            key = f"{self._slugs[cell.cell.label]}.{self._metrics[metric]}"
            for name, value in (("difference", comparison.difference), ("low", low), ("high", high)):
                self._add(f"{key}.{name}", number(value, decimals, is_signed=True))
            for name, p in (
                ("p", comparison.p),
                ("p-holm", comparison.p_holm),
                ("p-segments", comparison.p_segments),
            ):
                self._add(f"{key}.{name}", probability(p))
            self._add(f"{key}.detectable", number(comparison.smallest_detectable, decimals))
            needed = comparison.seeds_needed
            self._add(f"{key}.seeds-needed", NOTHING if needed is None else f"{needed:,}")
            self._add(f"{key}.verdict", comparison.verdict)


def numbers_of_seeds(result: ComparedResults) -> str:
    """Say how many seeds of the cells have finished: ``3``, or ``3 to 10``."""
    numbers = {len(cell.measured(result.main_metric)) for cell in result.cells}
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


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
