"""BibTeX of a system's paper and of nlgraft."""

from __future__ import annotations

import importlib.metadata
import re

from nlgraft.analysis.rendering.typesetting import escape_latex
from nlgraft.study.data.system import System

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
    first = re.split(r", | and ", match["authors"])[0]
    return re.sub(r"\W", "", first).lower() + match["year"]


def bibliography(system: System) -> str:
    """Write the entries of the paper and of nlgraft.

    A system states its paper with surnames alone: the entry's note asks to complete them.
    """
    match = _PAPER.fullmatch(system.paper)
    if match is None:
        return _entry("misc", paper_key(system), {"title": system.paper}) + _tool()
    authors = re.split(r", | and ", match["authors"])
    fields = {"author": " and ".join(authors), "title": match["title"], "year": match["year"]}
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
