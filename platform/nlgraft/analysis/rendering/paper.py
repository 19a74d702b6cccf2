"""What a paper takes from a study: tables, figures, numbers, methods, checklist, examples, BibTeX."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from nlgraft.analysis.data.provenance import Cost, cost_of, split_sizes
from nlgraft.analysis.policy.examples import NUM_EXAMPLES, Example, Examples, examples_of
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.figures import KINDS, PAPER, WIDE, Drawing
from nlgraft.analysis.rendering.journals import ledger_sentences
from nlgraft.analysis.rendering.prose import fairness, method
from nlgraft.analysis.rendering.report import latex_tables
from nlgraft.analysis.rendering.search_tables import search_table, space_table
from nlgraft.analysis.rendering.sections import sections
from nlgraft.analysis.rendering.tables import (
    caption,
    column_decimals,
    compared_metrics,
    comparison_table,
    confidence,
    covered,
    metrics_table,
    numbers_of_seeds,
    seeds,
    signatures,
)
from nlgraft.analysis.rendering.typesetting import (
    NOTHING,
    escape_latex,
    make_table,
    num_decimals,
    number,
    probability,
    slug,
    to_markdown,
    unique_slugs,
)
from nlgraft.basics.wording import count, inert_markdown
from nlgraft.study.data.system import System

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


_PARAMETERS = ("parameters/total", "parameters/trained")
_ANSWERED_BY_AUTHORS = (
    "Not answered here, since only the authors can: A (limitations, risks), B2 to B5 (licences, intended "
    "use, personal data, documentation of the data), D (annotators) and E (assistants)."
)
Sizes = Mapping[str, Mapping[str, int]]


def methods_paragraph(result: RecordedResults, numbers: Numbers, sizes: Sizes) -> str:
    """Write the methods paragraph as LaTeX; its numbers are macros."""
    study, m = result.study, numbers.macro
    selection = "Every setting is fixed by the study"
    if study.search is not None:
        selection = (
            f"Within each cell, {m('trials.search')} search trials in all chose the values of "
            f"{escape_latex(', '.join(study.search.space))} by {escape_latex(study.objective.metric)}"
        )
    on = ", ".join(
        f"{corpus} ({', '.join(f'{size:,} {split}' for split, size in splits.items())})"
        for corpus, splits in sizes.items()
    )
    most = "at most " if study.resources.max_workers > 1 else ""  # not every stage uses all workers
    main = result.main_metric
    signed = ", ".join(signatures(result).get(main, []))
    sentences = [
        f"We study {escape_latex(result.system.name)}~\\cite{{{paper_key(result.system)}}} with "
        f"nlgraft~\\cite{{{TOOL_KEY}}}: {m('cells')} configurations, each trained with {m('seeds')} seeds.",
        f"Examples by corpus: {escape_latex(on)}." if on else "",
        "The text is constructed by a grammar and no natural language." if result.is_constructed else "",
        f"The main metric is {escape_latex(main + (f' ({signed})' if signed else ''))}.",
        f"{selection}; scores on test are those of the seeds of the chosen configuration, and test was not "
        "used to choose.",
        escape_latex(fairness(result)),
        f"Everything took {most}{m('worker-hours')} worker-hours, failed and searched trials included.",
        *map(escape_latex, _statistics(result)),
    ]
    return "\n".join(filter(None, sentences)) + "\n"


def _statistics(result: RecordedResults) -> list[str]:
    return [*method(result), ledger_sentences(result), str(result.registration or "")]


def checklist(result: RecordedResults, cost: Cost, sizes: Sizes) -> str:
    """Answer the items of ARR's responsible-NLP checklist that a study can answer, as Markdown."""
    names = [name for name in _PARAMETERS if name in result.metrics]
    parameters = to_markdown(metrics_table(result, names)) if names else "Parameters: not reported."
    items = {
        "B1. Creators of artifacts": [f"{result.system.paper} BibTeX: references.bib."],
        "B6. Sizes of train, dev and test": [_sizes(sizes)],
        "C1. Parameters, computing, hardware": [
            parameters,
            *_hours(result, cost),
            _hardware(result),
            "Energy and emissions: not measured.",
        ],
        "C2. Hyperparameters": _search(result),
        "C3. Statistics": [
            to_markdown(comparison_table(result, result.main_metric)),
            fairness(result),
            *_statistics(result),
        ],
        "C4. Packages": _packages(result),
    }
    parts = [
        f"# Responsible NLP checklist: {result.study.variant}",
        "Answers that the store gives; the letters are those of the ARR checklist.",
        *(f"## {title}\n\n" + "\n\n".join(filter(None, texts)) for title, texts in items.items()),
        _ANSWERED_BY_AUTHORS,
    ]
    return inert_markdown("\n\n".join(parts)) + "\n"


def _sizes(sizes: Sizes) -> str:
    if not sizes:
        return "No trial has finished, so no size is known."
    return to_markdown(
        make_table(
            {"corpus (examples)": corpus} | {split: f"{num:,}" for split, num in splits.items()}
            for corpus, splits in sizes.items()
        )
    )


def _hours(result: RecordedResults, cost: Cost) -> list[str]:
    resources = result.study.resources
    workers, gpus = resources.max_workers, resources.gpus_per_worker
    total = cost.total_s * workers
    share = [f"{hours_text(cost.lost_s * workers)} of trials that failed or were stopped"]
    if result.study.search is not None:
        share.insert(0, f"{hours_text(cost.search_s * workers)} that only the search needed")
    used = f"{count(resources.cpus_per_worker, 'CPU core')}" + (f" and {gpus:g} GPU" if gpus else ", no GPU")
    texts = [
        f"Worker-hours of all trials, each shared stage counted once: {hours_text(total)}, among them "
        f"{' and '.join(share)}. A worker has {used}."
    ]
    if workers > 1:
        texts.append(
            f"Times count {workers} workers for every stage, an upper bound: not all stages use them."
        )
    if cost.num_again:
        texts.append(
            f"{count(cost.num_again, 'trial')} ran more than once: what earlier attempts computed and did "
            "not store is not counted."
        )
    if cost.num_elsewhere:
        texts.append(
            f"Not counted: {count(cost.num_elsewhere, 'trial')} of other studies and variants in the same "
            f"store, {hours_text(cost.elsewhere_s)} hours from start to end. Add them if they were pilots."
        )
    return texts


def _hardware(result: RecordedResults) -> str:
    versions = result.provenance.versions
    named = [", ".join(versions[key]) for key in ("processor", "gpu", "system") if key in versions]
    hosts = ", ".join(result.provenance.hosts)
    missing = "" if "processor" in versions else " The processor is not on record."
    return f"Hardware: {'; '.join(named) or 'not on record'}. Hosts: {hosts or 'none yet'}.{missing}"


def _search(result: RecordedResults) -> list[str]:
    search = result.study.search
    if search is None:
        return ["Nothing was searched: all settings are those of the study file."]
    chosen = search_table(result)
    scheduler = search.active_scheduler
    first = f", {len(search.start)} of them chosen beforehand" if search.start else ""
    stopped = f", trials stopped early by {scheduler.name}" if scheduler else ""
    return [
        f"{search.trials} trials in each cell by {search.sampler.name} (seed {search.sampler.seed}){first}"
        f"{stopped}. {result.study.objective.metric} chose; test was scored for the chosen values alone.",
        to_markdown(space_table(search.space)),
        *([] if chosen is None else ["Best values:", to_markdown(chosen)]),
    ]


def _packages(result: RecordedResults) -> list[str]:
    facts = result.provenance
    versions = [
        {"package": name, "version": ", ".join(releases)} for name, releases in facts.versions.items()
    ]
    code = ", ".join(facts.commits)
    signed = [
        {"metric": name, "signature": ", ".join(f"`{text}`" for text in texts)}
        for name, texts in signatures(result).items()
    ]
    return [
        to_markdown(make_table(versions, num_text=2)) if versions else "None yet.",
        f"Code: commit {code} (+: with changes that were not committed)." if code else "",
        to_markdown(make_table(signed, num_text=2)) if signed else "",
    ]


_MOST_CHARACTERS = 600
"""Longer texts, as of whole documents, are cut."""


def examples_appendix(result: RecordedResults) -> str:
    """Typeset the examples of every cell as LaTeX."""
    return "\n".join(_compared(result, examples) for examples in examples_of(result))


def _compared(result: RecordedResults, examples: Examples) -> str:
    base, metric = result.baseline.label, result.main_metric
    title = rf"\subsection*{{{escape_latex(f'{examples.label} against {base}')}}}"
    if examples.why_none:
        return f"{title}\n{escape_latex(f'No examples: {examples.why_none}.')}\n"
    preface = (
        f"The {len(examples.examples)} segments whose {metric}, each segment scored alone, differs most "
        f"between the two (at most {NUM_EXAMPLES}), with the outputs of seed {examples.seed}. They are "
        "chosen for their difference and are no sample: they show how the systems differ, not "
        "which is better."
    )
    decimals = num_decimals(score for example in examples.examples for score in example.scores)
    items = [_example(example, (examples.label, base), decimals) for example in examples.examples]
    return "\n".join([title, escape_latex(preface), r"\begin{enumerate}", *items, r"\end{enumerate}", ""])


def _example(example: Example, labels: tuple[str, str], decimals: int) -> str:
    lines = [("source", example.source)] if example.source else []
    lines += [("reference", example.reference)]
    lines += [
        (f"{label} ({number(score, decimals)})", text)
        for label, score, text in zip(labels, example.scores, example.outputs, strict=True)
    ]
    body = r"\\".join(
        rf"\emph{{{escape_latex(name)}:}} {escape_latex(_cut(text))}" + "\n" for name, text in lines
    )
    return rf"\item[{example.number}.] {body}".rstrip()


def _cut(text: str) -> str:
    short = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
    return short or "(empty)"


_PAPER = re.compile(
    r"(?P<authors>.+?) \((?P<year>\d{4})\): (?P<title>.+?)\. (?:(?P<venue>[^,]+), )?(?P<url>https?://\S+)"
)
_ARXIV = "https://arxiv.org/abs/"
TOOL_KEY = "nlgraft"


def paper_key(system: System) -> str:
    """Name the entry of a system's paper: the first author and the year, ``mosin2021``."""
    match = _PAPER.fullmatch(system.paper)
    if match is None:
        return re.sub(r"[^a-z0-9]", "", system.name.lower())
    return re.sub(r"\W", "", _authors(match)[0]).lower() + match["year"]


def _authors(match: re.Match[str]) -> list[str]:
    return re.split(r", | and ", match["authors"])


def bibliography(system: System) -> str:
    """Write the entries of the paper and of nlgraft.

    A system states its paper with surnames alone: the entry's note asks to complete them.
    """
    match = _PAPER.fullmatch(system.paper)
    if match is None:
        return _entry("misc", paper_key(system), {"title": system.paper}) + _tool()
    fields = {"author": " and ".join(_authors(match)), "title": match["title"], "year": match["year"]}
    if match["venue"]:
        fields["booktitle"] = match["venue"]
    fields["url"] = match["url"]
    if match["url"].startswith(_ARXIV):
        fields |= {"eprint": match["url"].removeprefix(_ARXIV), "archiveprefix": "arXiv"}
    kind = "inproceedings" if match["venue"] else "misc"
    note = f"% {paper_key(system)}: surnames as the system states them; add first names before you publish.\n"
    return note + _entry(kind, paper_key(system), fields) + _tool()


def _tool() -> str:
    about = importlib.metadata.metadata("nlgraft")
    author = f"{{{about['Author']}}}"  # a group, whose last word is no surname
    title = f"nlgraft: {about['Summary']}"
    return _entry("misc", TOOL_KEY, {"author": author, "title": title, "note": f"Version {about['Version']}"})


def _entry(kind: str, key: str, fields: dict[str, str]) -> str:
    lines = [f"  {name} = {{{_value(name, value)}}}" for name, value in fields.items()]
    return f"@{kind}{{{key},\n" + ",\n".join(lines) + "\n}\n"


def _value(name: str, value: str) -> str:
    """Escape a value; a title keeps its capitals, an address its signs."""
    if name == "url":
        return value
    if value.startswith("{"):
        return "{" + escape_latex(value[1:-1]) + "}"
    return "{" + escape_latex(value) + "}" if name == "title" else escape_latex(value)


_DOCUMENT = r"""% Compiles by itself; a paper of your own inputs the files that it wants, after
%   \usepackage{booktabs,graphicx}  and, where they lie in another folder,  \newcommand{\nlgraftdir}{FOLDER}
\documentclass[10pt,twocolumn]{article}
\usepackage{iftex}
\ifpdftex\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\else\usepackage{fontspec}\fi
% Examples in other than Latin scripts need LuaLaTeX or XeLaTeX, and a font that has them.
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,graphicx}
\usepackage[hidelinks]{hyperref}
\emergencystretch=2em
\input{numbers}
\title{TITLE}
\author{}
\date{}
\begin{document}
\maketitle
\section{Method}
\input{methods}
\section{Results}
\input{tables}
\clearpage
\input{figures}
\clearpage
\bibliographystyle{plain}
\bibliography{references}
\appendix
\section{Examples}
\input{examples}
\end{document}
"""


def write_paper(result: RecordedResults, out: Path) -> list[Path]:
    """Write the files of a paper, see `StudyResult.paper`."""
    parts = sections(result)
    cost, sizes = cost_of(result.trials, result.store), split_sizes(result.cells, result.store)
    numbers = Numbers(result, cost, sizes)
    drawn = _figures(result)
    texts = {
        "paper.tex": _DOCUMENT.replace("TITLE", escape_latex(result.study.variant)),
        "numbers.tex": numbers.render(),
        "methods.tex": methods_paragraph(result, numbers, sizes),
        "tables.tex": latex_tables(result, parts),
        "figures.tex": "\n".join(_include(result, name, sentences) for name, (_, sentences) in drawn.items()),
        "examples.tex": examples_appendix(result),
        "references.bib": bibliography(result.system),
        "checklist.md": checklist(result, cost, sizes),
    }
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    paths = [out / name for name in texts]
    for name, (drawing, _) in drawn.items():
        for suffix in (".pdf", ".svg"):
            paths.append(out / "figures" / (name + suffix))
            drawing.save(paths[-1])
    return paths


def _figures(result: RecordedResults) -> dict[str, tuple[Drawing, str]]:
    """Draw the figures, by name and with what their captions say."""
    n, intervals = seeds(result), covered(result)
    captions = {
        "forest": f"Difference from the baseline on {result.main_metric}, mean of {n}. {intervals}",
        "gains": f"{{title}}, mean of {n}; bands are intervals. {intervals}",
        "curves": "{title} by step: mean of the seeds; bands span their minimum and maximum.",
        "budget": "Expected best {title}. Bands describe the trials that ran; they test nothing.",
    }
    named = {"curves": "curve", "budget": "best"}
    figures = {}
    for kind, draw in KINDS.items():
        drawn = draw(result, PAPER)
        shown = [figure.caption or figure.title for figure in drawn]
        for figure, text, name in zip(drawn, shown, unique_slugs(shown).values(), strict=True):
            file = kind if kind in WIDE else f"{named[kind]}-{name}"
            figures[file] = (figure, captions[kind].replace("{title}", text))
    return figures


def _include(result: RecordedResults, name: str, sentences: str) -> str:
    return "\n".join(
        [
            r"\providecommand{\nlgraftdir}{.}",
            r"\begin{figure}[t]",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{\nlgraftdir/figures/{name}.pdf}}",
            rf"\caption{{{escape_latex(caption(result, sentences))}}}",
            rf"\label{{fig:{slug(result.study.variant)}-{name}}}",
            r"\end{figure}",
            "",
        ]
    )
