"""Text from elsewhere: datasets of the Hugging Face hub and sacreBLEU's test sets."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.text.corpus_config import HuggingFaceConfig, PairFiles, sacrebleu_dataset
from nlgraft.text.files import spooled

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""NUL, which no text has, and halves of characters, which UTF-8 cannot encode."""


def missing_package() -> str | None:
    """Say what to do where the optional package that reads the hub is not installed; None where it is."""
    package = sys.modules["datasets"] if "datasets" in sys.modules else find_spec("datasets")
    if package is not None:
        return None
    return (
        "corpus: huggingface needs the datasets package; pip install 'nlgraft[datasets]' "
        "or export the text and use corpus: files"
    )


def load_split(config: HuggingFaceConfig, split: str) -> dict[str, Sequence[str]]:
    """Load the lines of one split of a hub dataset, by role as ``PairFiles.streams`` names them.

    Line feeds inside an example become spaces: here an example is a line.

    Raises:
        DataError: The ``datasets`` package is missing, the dataset cannot be loaded, or a column is missing.
    """
    if reason := missing_package():
        raise DataError(reason)
    hub_split = config.splits[split]
    where = f"{config.path}{f' ({config.name})' if config.name else ''}, split {hub_split}"
    try:
        rows = _rows(config, hub_split)
    except Exception as error:  # the package raises whatever its file systems and builders raise
        raise DataError(f"{where}: cannot be loaded: {type(error).__name__}: {error}") from error
    if len(rows) == 0:
        raise DataError(f"{where}: the split is empty")
    return {role: _column(rows, column, where, role) for role, column in config.columns().items()}


def _rows(config: HuggingFaceConfig, hub_split: str) -> Any:
    import datasets  # pyright: ignore[reportMissingImports]  # an optional extra

    if not Path(config.path, "dataset_dict.json").exists():
        return datasets.load_dataset(config.path, config.name, split=hub_split, revision=config.revision)
    # What `save_to_disk` wrote has no builder that `load_dataset` could call.
    saved = datasets.load_from_disk(config.path)
    if hub_split not in saved:
        raise LookupError(f"it has {', '.join(saved)}, and no slices of them")
    return saved[hub_split]


def _column(rows: Any, column: str, where: str, role: str) -> Sequence[str]:
    first, *inside = column.split(".")
    if first not in rows.column_names:
        raise DataError(f"{where}: no column {first!r} for {role}; it has {', '.join(rows.column_names)}")
    names = getattr(rows.features.get(first), "names", None) if role == "label" else None
    return spooled(
        as_line(value, inside, names, f"{where}, {column}, example {n}")
        for n, value in enumerate(rows[first])
    )


def as_line(
    value: Any, inside: Sequence[str] = (), names: Sequence[str] | None = None, where: str = ""
) -> str:
    """Turn a value of a row into a line of text; line feeds become spaces.

    Args:
        value: Text, a number, or nested mappings of these.
        inside: Keys that lead to it.
        names: Names of classes, for their numbers.
        where: The place, for errors.

    Raises:
        DataError: A key is missing, or the value is no text or holds what no text has.
    """
    for key in inside:
        if not isinstance(value, dict) or key not in value:
            has = ", ".join(value) if isinstance(value, dict) else type(value).__name__
            raise DataError(f"{where}: no {key!r} inside; it has {has}")
        value = value[key]
    if names is not None and isinstance(value, int) and 0 <= value < len(names):
        value = names[value]
    if not isinstance(value, str | int):
        raise DataError(f"{where}: {type(value).__name__} instead of text")
    if bad := _NO_TEXT.search(str(value)):
        raise DataError(f"{where}: {bad[0]!r}, which no text has; convert the text to UTF-8 without it")
    return str(value).replace("\r\n", " ").replace("\n", " ")


def test_set_files(test_set: str, langpair: str) -> PairFiles:
    """Return the paths of a sacreBLEU test set's source and first reference, downloading them if necessary.

    Raises:
        DataError: There is no such test set or direction, or it cannot be downloaded.
    """
    from sacrebleu import utils  # takes 0.2 s to import

    langpairs = sacrebleu_dataset(test_set).langpairs
    if langpair not in langpairs:
        has = ", ".join(langpairs)
        raise DataError(f"{test_set}: no {langpair}; it has {has}")
    try:
        source = utils.get_source_file(test_set, langpair)
        references = utils.get_reference_files(test_set, langpair)
    except SystemExit as error:  # how sacreBLEU reports a wrong checksum
        raise DataError(f"{test_set} {langpair}: sacreBLEU failed; see its message above") from error
    except Exception as error:
        raise DataError(
            f"{test_set} {langpair}: cannot be downloaded ({type(error).__name__}: {error}); it needs "
            "the network, or a copy in ~/.sacrebleu (SACREBLEU names another place)"
        ) from error
    return PairFiles(sources=(source,), target=references[0])
