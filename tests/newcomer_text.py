"""The text with which a newcomer begins, by the names that pages give it."""

import gzip
import re
from collections.abc import Iterable
from pathlib import Path

from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig


def newcomer_text(num_lines: int) -> dict[str, list[str]]:
    """Make lines in three languages, and lines with labels, by the names of their files."""
    several, labelled = (
        generate(ConlangConfig(corpus="conlang", task=task, train=num_lines), "train")
        for task in ("multi_source", "classification")
    )
    text = {"text.en": several["source 0"], "text.fr": several["source 1"], "text.de": several["target"]}
    return text | {"lines.txt": labelled["source 0"], "lines.label": labelled["label"]}


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write a text file, or one that is compressed if its name says so."""
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_domains(folder: Path, study: str, **sizes: int) -> set[str]:
    """Write the files that the study of docs/commands.md names, parallel and of two domains; return them."""
    names = set(re.findall(r"[\w-]+\.(?:en|de)(?:\.gz)?", study))
    corpora = {
        stem: load_corpus(ConlangConfig(corpus="conlang", domain=domain, **sizes))
        for stem, domain in (("wiki", "a"), ("law", "b"))
    }
    for name in names:
        stem, _, split = name.split(".")[0].partition("-")
        corpus = corpora[stem][split or "train"]
        write_lines(folder / name, corpus.sources[0] if ".en" in name else corpus.target)
    return names
