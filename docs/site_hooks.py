"""What MkDocs does not do by itself: files of the repository and tables in pages, and pages for programs.

A line ``<!-- file: PATH -->`` stands for a file without its title, ``<!-- metrics: SYSTEM -->`` for the
metrics of a system. Every page is written as Markdown beside its HTML, and
``llms.txt`` lists them (llmstxt.org).
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from pydoc import locate
from typing import TYPE_CHECKING

from nlgraft.study.reading.catalogue import find_system, metrics_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_written: dict[str, tuple[str, str]] = {}
"""Title and Markdown of every page, by its path."""


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put in what the lines of the page stand for."""
    path = page.file.src_uri
    up = "../" * path.count("/")

    def file(match: re.Match[str]) -> str:
        text = (ROOT / match[1]).read_text("utf-8").partition("\n")[2]
        return text.replace("](docs/", f"]({up}")

    markdown = re.sub(r"^<!-- file: (\S+) -->$", file, markdown, flags=re.MULTILINE)
    markdown = re.sub(r"^<!-- metrics: (\w+) -->$", lambda match: _metrics(match[1]), markdown, flags=re.M)
    _written[path] = (str(page.title), markdown)
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Write every page as Markdown, and the list of them."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for path, (title, markdown) in _written.items():
        text = re.sub(r"^::: (\S+)(\n {4}.*)*", lambda match: _described(match[1]), markdown, flags=re.M)
        (site / path).write_text(text, "utf-8")
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("**", "")
        first = re.findall(r"^[A-Za-z`].*?(?=\n\n|\Z)", prose, re.MULTILINE | re.DOTALL)[0]
        lines.append(f"- [{title}]({path}): {' '.join(first.split()).partition('. ')[0].rstrip('.:')}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def _metrics(system: str) -> str:
    rows = metrics_of(find_system(system))
    better = {"minimize": "lower", "maximize": "higher"}
    lines = [
        f"| `{row['metric']}` | {better.get(row['direction'], '')} | {row['unit']} | {row['description']} |"
        for row in rows
    ]
    return "\n".join(["| metric | better | unit | meaning |", "|---|---|---|---|", *lines])


def _described(name: str) -> str:
    """Describe a public object and, of a class, its public methods and properties."""
    documented = locate(name)
    bases = inspect.getmro(documented) if inspect.isclass(documented) else ()
    members = {
        f"{name}.{key}": getattr(documented, key)
        for base in bases
        if base.__module__.startswith("nlgraft")
        for key, member in vars(base).items()
        if key[:1] != "_" and (inspect.isroutine(member) or isinstance(member, property))
    }
    texts = []
    for label, member in [(name, documented), *members.items()]:
        is_called = callable(member) and not inspect.isclass(member)
        signature = inspect.signature(member) if is_called else ""
        texts.append(f"## `{label}{signature}`\n\n{inspect.getdoc(member)}")
    return "\n\n".join(texts)
