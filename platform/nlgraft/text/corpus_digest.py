"""Digest of a corpus: everything on which its text depends, for fingerprints."""

from __future__ import annotations

from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.text.corpus_config import ConlangConfig, CorpusConfig, FilesConfig, SacreBleuConfig, TextFiles
from nlgraft.text.files import file_digest

CONLANG_VERSION = 1
"""Part of the digest; raise it when the same config gives other constructed text."""


def digest(config: CorpusConfig) -> dict[str, Any]:
    """Return everything on which the text of a corpus depends, as JSON for fingerprints.

    Configs with equal digests give the same text. Files count by the SHA-256 of their bytes wherever they
    lie, a hub dataset by its revision, a sacreBLEU test set by its name and published checksums.

    Raises:
        DataError: A file is missing, or sacreBLEU knows no such test set.
    """
    content = config.model_dump(mode="json")
    if isinstance(config, ConlangConfig):
        return {**content, "version": CONLANG_VERSION}
    if not isinstance(config, FilesConfig | SacreBleuConfig):
        return content
    # Further tests are among the splits below, by their files instead of their paths.
    content.pop("further_tests", None)
    for split, files in config.splits.items():
        if isinstance(files, TextFiles) and files.table is not None:
            content[split] = {**files.streams(), "table": file_digest(files.table)}
        elif isinstance(files, TextFiles):
            content[split] = {role: file_digest(path) for role, path in files.streams().items()}
        else:
            content[split] = {"test_set": files, "md5": _test_set_md5(files)}
    return content


def _test_set_md5(name: str) -> list[str]:
    from sacrebleu.dataset import DATASETS  # takes 0.2 s to import

    if name not in DATASETS:
        raise DataError(f"{name}: sacreBLEU knows no such test set; `sacrebleu --list` names them")
    return list(DATASETS[name].md5 or [])
