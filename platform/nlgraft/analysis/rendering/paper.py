"""What a paper takes from a study: tables, figures, numbers, methods, checklist, examples, BibTeX."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from nlgraft.analysis.data.provenance import Cost, cost_of, split_sizes
from nlgraft.analysis.policy.examples import NUM_EXAMPLES, examples_of
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.figures import KINDS, PAPER, WIDE, Drawing
from nlgraft.analysis.rendering.journals import ledger_sentences
from nlgraft.analysis.rendering.prose import fairness, method
from nlgraft.analysis.rendering.report import latex_tables, sections
from nlgraft.analysis.rendering.tables import (
    caption,
    column_decimals,
    compared_metrics,
    confidence,
    covered,
    metrics_table,
    numbers_of_seeds,
    seeds,
    signatures,
)
from nlgraft.analysis.rendering.typesetting import (
    NOTHING,
    Table,
    make_table,
    number,
    probability,
    slug,
    template,
    unique_slugs,
)
from nlgraft.study.data.system import System


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
    yield "alpha", f"{result.alpha:g}"
    yield "confidence", confidence(result.alpha)
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


_PARAMETERS = ("parameters/total", "parameters/trained")
_PAPER = re.compile(
    r"(?P<authors>.+?) \((?P<year>\d{4})\): (?P<title>.+?)\. (?:(?P<venue>[^,]+), )?"
    r"(?P<url>https?://(?:arxiv\.org/abs/(?P<arxiv>\S+)|\S+))"
)


def paper_key(system: System) -> str:
    """Name the entry of a system's paper: the first author and the year, ``mosin2021``."""
    match = _PAPER.fullmatch(system.paper)
    if match is None:
        return re.sub(r"[^a-z0-9]", "", system.name.lower())
    first_author = re.split(r", | and ", match["authors"])[0]
    return re.sub(r"\W", "", first_author).lower() + match["year"]


def bibliography(system: System) -> str:
    """Write the entries of the paper and of nlgraft.

    A system states its paper with surnames alone: the entry's note asks to complete them.
    """
    match = _PAPER.fullmatch(system.paper)
    return template("references.bib.j2").render(
        system=system,
        key=paper_key(system),
        paper=match and match.groupdict(),
        about=importlib.metadata.metadata("nlgraft"),
    )


_TEXTS = (
    *("paper.tex", "numbers.tex", "methods.tex", "tables.tex", "figures.tex", "examples.tex"),
    *("references.bib", "checklist.md"),
)
Figures = Mapping[str, tuple[str, Drawing]]
"""Figures by their names, each with its kind."""


def paper_texts(result: RecordedResults, figures: Figures) -> dict[str, str]:
    """Write the texts of a paper, by the names of their files."""
    parts, signed = sections(result), signatures(result)
    sizes = split_sizes(result.cells, result.store)
    cost = cost_of(result.trials, result.store)
    numbers = dict(chain(_of_study(result, cost), _of_cells(result)))
    for corpus, splits in sizes.items():
        numbers |= {f"examples.{slug(corpus)}.{slug(split)}": f"{num:,}" for split, num in splits.items()}
    numbers |= {f"claim.{index}.verdict": claim.text for index, claim in enumerate(result.claims, start=1)}
    parameters = [name for name in _PARAMETERS if name in result.metrics]
    tables = {section.name: section.table for section in parts} | {
        "parameters": metrics_table(result, parameters) if parameters else None,
        "sizes": make_table(
            {"corpus (examples)": corpus} | {split: f"{num:,}" for split, num in splits.items()}
            for corpus, splits in sizes.items()
        ),
        "packages": _pairs(("package", "version"), result.provenance.versions, "{}"),
        "signatures": _pairs(("metric", "signature"), signed, "`{}`"),
    }
    facts = {
        "result": result,
        "study": result.study,
        "key": paper_key(result.system),
        "label": slug(result.study.variant),  # in every macro, since a paper may hold several studies
        "numbers": numbers,
        "sizes": sizes,
        "cost": cost,
        "tables": tables,
        "signatures": signed,
        "fairness": fairness(result),
        "statistics": [*method(result), ledger_sentences(result), str(result.registration or "")],
        "figures": figures,
        "examples": examples_of(result),
        "most_examples": NUM_EXAMPLES,
        "caption": caption,
        "hours": hours_text,
        "n": seeds(result),
        "intervals": covered(result),
    }
    texts = {"tables.tex": latex_tables(result, parts), "references.bib": bibliography(result.system)}
    return {name: texts.get(name) or template(f"{name}.j2").render(facts) for name in _TEXTS}


def _pairs(
    header: tuple[str, str],
    texts_of: Mapping[str, Iterable[str]],
    form: str,
) -> Table:
    """Tabulate names with texts."""
    rows = ((name, ", ".join(map(form.format, texts))) for name, texts in texts_of.items())
    return make_table((dict(zip(header, row, strict=True)) for row in rows), num_text=2)


def write_paper(result: RecordedResults, out: Path) -> list[Path]:
    """Write the files of a paper, see `StudyResult.paper`."""
    drawn = _figures(result)
    texts = paper_texts(result, drawn)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, "utf-8")
    paths = [out / name for name in texts]
    for name, (_, drawing) in drawn.items():
        for suffix in (".pdf", ".svg"):
            paths.append(out / "figures" / (name + suffix))
            drawing.save(paths[-1])
    return paths


def _figures(result: RecordedResults) -> Figures:
    """Draw the figures, by name and with their kinds."""
    named = {"curves": "curve", "budget": "best"}
    figures = {}
    for kind, draw in KINDS.items():
        drawn = draw(result, PAPER)
        names = unique_slugs(figure.caption or figure.title for figure in drawn)
        for figure, name in zip(drawn, names.values(), strict=True):
            file = kind if kind in WIDE else f"{named[kind]}-{name}"
            figures[file] = (kind, figure)
    return figures
