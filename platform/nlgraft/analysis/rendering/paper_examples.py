"""The appendix of examples: the segments in which a cell and the baseline differ most."""

from __future__ import annotations

from nlgraft.analysis.policy.compared import ComparedResults
from nlgraft.analysis.policy.examples import NUM_EXAMPLES, Example, Examples, examples_of
from nlgraft.analysis.rendering.typesetting import escape_latex, num_decimals, number

_MOST_CHARACTERS = 600
"""Longer texts, as of whole documents, are cut."""


def examples_appendix(result: ComparedResults) -> str:
    """Typeset the examples of every cell as LaTeX."""
    return "\n".join(_compared(result, examples) for examples in examples_of(result))


def _compared(result: ComparedResults, examples: Examples) -> str:
    base, metric = result.baseline.cell.label, result.main_metric
    title = rf"\subsection*{{{escape_latex(f'{examples.label} against {base}')}}}"
    if examples.why_none:
        return f"{title}\n{escape_latex(f'No examples: {examples.why_none}.')}\n"
    preface = (
        f"The {len(examples.found)} segments whose {metric}, each segment scored alone, differs most between "
        f"the two (at most {NUM_EXAMPLES}), with the outputs of seed {examples.seed}. They are chosen for "
        "their difference and are no sample: they show how the systems differ, not which is better."
    )
    decimals = num_decimals(score for example in examples.found for score in example.scores)
    items = [_example(example, (examples.label, base), decimals) for example in examples.found]
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
