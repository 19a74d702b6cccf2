"""What a paper takes from a study: tables, figures, numbers, methods, checklist, examples, BibTeX."""

from __future__ import annotations

from pathlib import Path

from nlgraft.analysis.data.provenance import cost_of, split_sizes
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.rendering.drawing import PAPER, Drawing
from nlgraft.analysis.rendering.figures import KINDS, WIDE
from nlgraft.analysis.rendering.paper_numbers import Numbers, slug, unique_slugs
from nlgraft.analysis.rendering.paper_prose import (
    bibliography,
    checklist,
    examples_appendix,
    methods_paragraph,
)
from nlgraft.analysis.rendering.report import latex_tables
from nlgraft.analysis.rendering.sections import sections
from nlgraft.analysis.rendering.tables import caption, covered, seeds
from nlgraft.analysis.rendering.typesetting import escape_latex

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
    """Write the files of a paper.

    Args:
        result: The result.
        out: Directory to write into; created when missing. Files of an earlier call are replaced.

    Returns:
        ``paper.tex``, ``numbers.tex``, ``methods.tex``, ``tables.tex``, ``figures.tex``, ``examples.tex``,
        ``references.bib``, ``checklist.md``, and every figure as PDF and as SVG.
    """
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
