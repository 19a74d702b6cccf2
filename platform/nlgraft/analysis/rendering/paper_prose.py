"""What a paper says of a study in words: the methods paragraph and the answers to a checklist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlgraft.analysis.data.cost import Cost
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.bibliography import TOOL_KEY, paper_key
from nlgraft.analysis.rendering.paper_numbers import Numbers, hours_text
from nlgraft.analysis.rendering.search_tables import space_table
from nlgraft.analysis.rendering.typesetting import escape_latex, make_table, to_markdown
from nlgraft.basics.wording import count, inert_markdown

_PARAMETERS = ("parameters/total", "parameters/trained")
_ANSWERED_BY_AUTHORS = (
    "Not answered here, since only the authors can: A (limitations, risks), B2 to B5 (licences, intended "
    "use, personal data, documentation of the data), D (annotators) and E (assistants)."
)
Sizes = Mapping[str, Mapping[str, int]]


def methods_paragraph(
    result: RecordedResults, facts: Mapping[str, Any], numbers: Numbers, sizes: Sizes
) -> str:
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
    signed = ", ".join(facts["signatures"].get(main, []))
    sentences = [
        f"We study {escape_latex(result.system.name)}~\\cite{{{paper_key(result.system)}}} with "
        f"nlgraft~\\cite{{{TOOL_KEY}}}: {m('cells')} configurations, each trained with {m('seeds')} seeds.",
        f"Examples by corpus: {escape_latex(on)}." if on else "",
        "The text is constructed by a grammar and no natural language." if result.is_constructed else "",
        f"The main metric is {escape_latex(main + (f' ({signed})' if signed else ''))}.",
        f"{selection}; scores on test are those of the seeds of the chosen configuration, and test was not "
        "used to choose.",
        escape_latex(facts["fairness"]),
        f"Everything took {most}{m('worker-hours')} worker-hours, failed and searched trials included.",
        *map(escape_latex, [*facts["method"], facts["ledger"], facts["registration"]]),
    ]
    return "\n".join(filter(None, sentences)) + "\n"


def checklist(result: RecordedResults, facts: Mapping[str, Any], cost: Cost, sizes: Sizes) -> str:
    """Answer the items of ARR's responsible-NLP checklist that a study can answer, as Markdown."""
    items = {
        "B1. Creators of artifacts": [f"{result.system.paper} BibTeX: references.bib."],
        "B6. Sizes of train, dev and test": [_sizes(sizes)],
        "C1. Parameters, computing, hardware": [
            _parameters(result),
            *_hours(result, cost),
            _hardware(result),
            "Energy and emissions: not measured.",
        ],
        "C2. Hyperparameters": _search(result, facts),
        "C3. Statistics": [
            to_markdown(facts["comparison"]),
            facts["fairness"],
            *facts["method"],
            facts["ledger"],
            facts["registration"],
        ],
        "C4. Packages": [*_packages(result), *_signed(facts["signatures"])],
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
    splits = list(dict.fromkeys(split for counts in sizes.values() for split in counts))
    rows = [
        [corpus, *(f"{counts[split]:,}" if split in counts else "" for split in splits)]
        for corpus, counts in sizes.items()
    ]
    return to_markdown(make_table(["corpus (examples)", *splits], rows))


def _parameters(result: RecordedResults) -> str:
    names = [name for name in result.metrics if name in _PARAMETERS]
    if not names:
        return "Parameters: the system does not report them."
    rows = [
        [cell.cell.label, *("" if (mean := cell.mean(name)) is None else f"{mean:,.0f}" for name in names)]
        for cell in result.cells
    ]
    return to_markdown(make_table(["cell", *names], rows))


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


def _search(result: RecordedResults, facts: Mapping[str, Any]) -> list[str]:
    search = result.study.search
    if search is None:
        return ["Nothing was searched: all settings are those of the study file."]
    objective = result.study.objective.metric
    scheduler = search.active_scheduler
    stopped = f", trials stopped early by {scheduler.name}" if scheduler else ""
    return [
        f"{search.trials} trials in each cell by {search.sampler.name} (seed {search.sampler.seed})"
        f"{stopped}. {objective} chose; test was scored for the chosen values alone.",
        to_markdown(space_table(search.space)),
        "Best values:",
        to_markdown(facts["search"]),
    ]


def _packages(result: RecordedResults) -> list[str]:
    facts = result.provenance
    versions = [(name, ", ".join(releases)) for name, releases in facts.versions.items()]
    code = ", ".join(facts.commits)
    return [
        to_markdown(make_table(["package", "version"], versions, num_text=2)) if versions else "None yet.",
        f"Code: commit {code} (+: with changes that were not committed)." if code else "",
    ]


def _signed(signatures: Mapping[str, list[str]]) -> list[str]:
    rows = [(name, ", ".join(f"`{text}`" for text in distinct)) for name, distinct in signatures.items()]
    return [to_markdown(make_table(["metric", "signature"], rows, num_text=2))] if rows else []
