"""Corpora: loaded from any source, written into artifacts and read back.

``load_corpus`` is the one entry for all four kinds of text. A corpus in an artifact is one text file per
stream and a small JSON file, and is read back exactly.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import chain, compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlgraft.basics.errors import DataError, StoreError, nearest
from nlgraft.basics.wording import name_some
from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpus_config import (
    SPLITS,
    ConlangConfig,
    CorpusConfig,
    FilesConfig,
    HuggingFaceConfig,
    PairFiles,
    SacreBleuConfig,
    TextFiles,
    WordRule,
    sacrebleu_dataset,
)
from nlgraft.text.files import (
    JoinedLines,
    Lines,
    LineSpool,
    StoredLines,
    check_alike,
    has_text,
    open_file,
    read_lines,
    spooled,
    unreadable,
    without_compression,
    write_json,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Checks of the labels of classification data, before anything is trained.


_NUM_SHOWN = 3


def check_labels(corpora: Mapping[str, Corpus], *, is_redrawn: bool) -> None:
    """Check that labels can be learned; corpora without labels pass.

    Args:
        corpora: Corpus by split.
        is_redrawn: True if the splits are pooled and drawn anew, so that only all of them together count.

    Raises:
        DataError: Labels are blank, all alike or nearly all distinct, or dev or test has some that train
            lacks. The message has a line for each problem.
    """
    labels = {split: corpus.labels for split, corpus in corpora.items() if corpus.labels is not None}
    remedy = "give each one, or remove the example from all files"
    problems = []
    for split, lines in labels.items():
        problems += blank_examples(split, lines, "no label", remedy)
    if is_redrawn:
        labels = {"train": [label for split_labels in labels.values() for label in split_labels]}
    if train := labels.get("train"):
        problems += [
            *_useless_labels(train),
            *(line for split in labels for line in _unlearned(split, labels)),
        ]
    if problems:
        raise DataError("\n".join(problems))


def blank_examples(
    split: str,
    lines: Sequence[str],
    problem: str,
    remedy: str,
) -> Iterator[str]:
    """Say how many examples of a split are blank in a role, and which come first."""
    blank = [str(number) for number, line in enumerate(lines, start=1) if not line.strip()]
    if blank:
        listed = name_some(blank, _NUM_SHOWN)
        yield f"{split}: {len(blank)} of {len(lines)} examples have {problem} (example {listed}); {remedy}"


def _useless_labels(labels: Sequence[str]) -> Iterator[str]:
    distinct = Counter(labels)
    if len(distinct) == 1:
        yield (
            f"train: all {len(labels)} examples have the label {labels[0]!r}: there is nothing to decide; "
            "give examples of two labels or more"
        )
    elif len(labels) >= _MIN_EXAMPLES and len(distinct) > len(labels) / 2:
        yield (
            f"train: {len(labels)} examples have {len(distinct)} distinct labels, such as "
            f"{', '.join(map(repr, [*distinct][:_NUM_SHOWN]))}: labels repeat; give a file with one label on "
            "each line and nothing else, or a column of a table"
        )


def _unlearned(split: str, labels: Mapping[str, Sequence[str]]) -> Iterator[str]:
    train_labels = set(labels["train"])
    unknown = Counter(label for label in labels[split] if label.strip() and label not in train_labels)
    if unknown:
        listed = name_some([repr(label) for label, _ in unknown.most_common()], _NUM_SHOWN)
        yield (
            f"{split}: {unknown.total()} of {len(labels[split])} examples have a label that train lacks "
            f"({listed}); give train examples of it, or remove these"
        )


_FileBased = FilesConfig | SacreBleuConfig
_LOG = logging.getLogger(__name__)
_FORMAT = 1
_MIN_EXAMPLES = 20
"""Fewer examples may be alike by chance."""


@dataclass(frozen=True)
class Selected:
    """Selection of the examples of a split.

    Attributes:
        num_read: Examples in the files.
        num_kept: Examples that the word rule kept.
        num_used: Examples within the limit.
        num_cut: Lines, over all streams, truncated to the most characters or words allowed.
    """

    num_read: int
    num_kept: int
    num_used: int
    num_cut: int = 0


@dataclass(frozen=True)
class Corpus:
    """One split: example n is line n of every stream, each in memory or read from a file at need.

    Attributes:
        sources: One sequence of lines per source, at least one.
        target: Target lines, or None.
        labels: Class labels, or None.
        documents: Document ids, or None; equal neighbouring ids make a document.
        selected: Selection of the examples; None for text that is used whole.
    """

    sources: Sequence[Sequence[str]]
    target: Sequence[str] | None = None
    labels: Sequence[str] | None = None
    documents: Sequence[str] | None = None
    selected: Selected | None = None

    def __post_init__(self) -> None:
        if not self.sources:
            raise DataError("a corpus needs at least one source")
        check_alike("the streams of a corpus", self.streams())

    def __len__(self) -> int:
        return len(self.sources[0])

    def streams(self) -> dict[str, Sequence[str]]:
        """Map role to lines, ``source 0``, ``target``, ``label``, ``document``, absent ones left out."""
        named: dict[str, Sequence[str] | None] = {
            f"source {i}": lines for i, lines in enumerate(self.sources)
        }
        named |= {"target": self.target, "label": self.labels, "document": self.documents}
        return {role: lines for role, lines in named.items() if lines is not None}

    def sides(self) -> dict[str, Sequence[str]]:
        """Name the text by role: sources and target, but no labels or document ids."""
        streams = self.streams().items()
        return {role: lines for role, lines in streams if role not in ("label", "document")}

    def text(self, *roles: str) -> list[str]:
        """List the lines of some roles, as ``lines`` does, in memory."""
        return [*self.lines(*roles)]

    def lines(self, *roles: str) -> Sequence[str]:
        """Join the lines of some roles, one role after the other; without roles those of all sides.

        Raises:
            DataError: The corpus lacks a role.
        """
        streams = self.streams()
        missing = [role for role in roles if role not in streams]
        if missing:
            raise DataError(f"no text of {', '.join(missing)}; the corpus has: {', '.join(streams)}")
        return JoinedLines(streams[role] for role in roles or self.sides())

    def at(self, examples: Sequence[int]) -> Corpus:
        """Take the examples of these numbers, in this order, into memory."""
        streams = self.streams().items()
        return Corpus.from_streams({role: [lines[n] for n in examples] for role, lines in streams})

    def lengths(self) -> NDArray[np.int32]:
        """Measure the lines of every side in characters, [sides, N]."""
        import numpy as np  # a study is read without it

        sides = self.sides().values()
        return np.stack([np.fromiter(map(len, side), np.int32, len(self)) for side in sides])

    @staticmethod
    def from_streams(streams: Mapping[str, Sequence[str]], selected: Selected | None = None) -> Corpus:
        """Build a corpus from lines by role, as ``streams`` returns them."""
        return Corpus(
            sources=[lines for role, lines in streams.items() if role.startswith("source ")],
            target=streams.get("target"),
            labels=streams.get("label"),
            documents=streams.get("document"),
            selected=selected,
        )


def load_corpus(config: CorpusConfig) -> dict[str, Corpus]:
    """Load or construct the train and dev split of a corpus, and its test split if it has one.

    Raises:
        DataError: Text is missing, empty, of unequal length, not UTF-8, or no example of a split is left.
    """
    match config:
        case ConlangConfig():
            return {split: Corpus.from_streams(generate(config, split)) for split in SPLITS}
        case FilesConfig():
            files = config.splits
        case HuggingFaceConfig():
            corpora = {}
            for split in config.splits:
                lines, num_cut = _cut(load_split(config, split), config.max_line_chars)
                corpora[split] = _select(config, split, lines, num_cut)
            return corpora
        case SacreBleuConfig():
            files = {
                split: split_files
                if isinstance(split_files, TextFiles)
                else test_set_files(split_files, config.langpair)
                for split, split_files in config.splits.items()
            }
    return {split: load_split_files(config, split, split_files) for split, split_files in files.items()}


def load_split_files(config: _FileBased, split: str, files: TextFiles) -> Corpus:
    """Load one split of a corpus from its files.

    Raises:
        DataError: As ``load_corpus``.
    """
    return _select(config, split, *_read(files, config.max_line_chars, split))


def _read(
    files: TextFiles,
    max_line_chars: int,
    split: str,
) -> tuple[dict[str, Sequence[str]], int]:
    if files.table is not None:
        return read_table(files.table, files.streams(), max_line_chars)
    tables = [path for path in dict.fromkeys(files.streams().values()) if table_suffix(path)]
    if tables:
        raise DataError(
            f"{split}: {', '.join(tables)} would be read as lines, header and all; name columns: "
            f"{split}: {{table: {Path(tables[0]).name}, sources: COLUMN, ...}}"
        )
    read: dict[str, Lines] = {}
    problems: list[str] = []
    for role, path in files.streams().items():
        try:
            read[role] = read_lines(path, max_line_chars)
        except DataError as error:
            problems.append(f"{split}: {error}")
    if problems:
        raise DataError("\n".join(problems))
    counts = {role: len(stream.lines) for role, stream in read.items()}
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{files.streams()[role]} {count}" for role, count in counts.items())
        raise DataError(
            f"{split}: files differ in their number of lines: {lengths}. Line n must be example n in each"
        )
    num_cut = sum(stream.num_cut for stream in read.values())
    return {role: stream.lines for role, stream in read.items()}, num_cut


def _cut(streams: dict[str, Sequence[str]], most: int) -> tuple[dict[str, Sequence[str]], int]:
    num_cut = sum(len(line) > most for lines in streams.values() for line in lines)
    cut = {role: spooled(line[:most] for line in lines) for role, lines in streams.items()}
    return cut, num_cut


def _select(
    config: FilesConfig | HuggingFaceConfig | SacreBleuConfig,
    split: str,
    streams: dict[str, Sequence[str]],
    num_cut: int,
) -> Corpus:
    if num_cut:
        _LOG.warning("%s: %d lines truncated to %d characters", split, num_cut, config.max_line_chars)
    if config.max_source_words is not None:
        streams, num_long = _shortened(streams, config.max_source_words)
        _LOG.info("%s: %d sources truncated to %d words", split, num_long, config.max_source_words)
        num_cut += num_long
    keep = _kept(config.keep, streams)
    num_kept = keep.count(True)
    if num_kept == 0:
        raise DataError(f"{split}: keep selects none of {len(keep)} examples; check keep.words and keep.has")
    # A further test set, test_NAME, has the limit of test.
    limit = getattr(config.limits, split.partition("_")[0])
    num_used = num_kept if limit is None else min(limit, num_kept)
    used = streams
    if num_used < len(keep):
        used = {role: spooled(islice(compress(lines, keep), limit)) for role, lines in streams.items()}
    corpus = Corpus.from_streams(used, Selected(len(keep), num_kept, num_used, num_cut))
    problems = [*_useless(corpus, is_trained_on=split == "train")]
    if problems:
        raise DataError("\n".join(f"{split}: {problem}" for problem in problems))
    return corpus


def _useless(corpus: Corpus, *, is_trained_on: bool) -> Iterator[str]:
    """Find sides of which nothing can be learned, or by which nothing can be scored."""
    sides = {"sources": corpus.sources, "target": [corpus.target or []]}
    for side, streams in sides.items():
        examples = zip(*streams, strict=True)
        first = next(examples, None)
        if first is None:
            continue
        if not any(map(has_text, streams)):
            yield f"all {len(corpus)} examples have no text in {side}; give another file or column"
        elif (
            is_trained_on and len(corpus) >= _MIN_EXAMPLES and {first}.issuperset(zip(*streams, strict=True))
        ):
            line = " | ".join(first)[:60]
            yield f"all {len(corpus)} examples have the same {side}, {line!r}; give text that differs"


def _shortened(streams: dict[str, Sequence[str]], most: int) -> tuple[dict[str, Sequence[str]], int]:
    num_long, cut = 0, dict(streams)
    for role in (role for role in streams if role.startswith("source ")):
        num_long += sum(len(line.split()) > most for line in streams[role])
        cut[role] = spooled(first_words(line, most) for line in streams[role])
    return cut, num_long


def first_words(line: str, most: int | None) -> str:
    """Truncate a line to so many words between white space; None, or fewer words: it stays as it is."""
    words = line.split()
    if most is None or len(words) <= most:
        return line
    return " ".join(words[:most])


def _kept(rule: WordRule | None, streams: Mapping[str, Sequence[str]]) -> bytes:
    """Say of each example if it is kept: 1 or 0."""
    if rule is None:
        return b"\1" * len(next(iter(streams.values())))
    return bytes(map(rule.keeps, streams["source 0"]))


@dataclass(frozen=True)
class SplitReport:
    """Counts of one split.

    Attributes:
        num_examples: Examples.
        num_empty_lines: Lines without any word, over sources and target.
        num_words: Whitespace-separated words by role.
        num_in_train: Examples of dev or test that also occur in train, with all sources and the target.
        num_sources_in_train: Examples of dev or test whose sources occur in train.
        selected: Selection of the examples.
    """

    num_examples: int
    num_empty_lines: int
    num_words: dict[str, int]
    num_in_train: int
    num_sources_in_train: int
    selected: Selected | None


def corpus_report(corpora: Mapping[str, Corpus]) -> dict[str, SplitReport]:
    """Count examples, words, empty lines and the overlap of train with the other splits.

    Exact duplicates are counted, never removed.
    """
    seen, seen_sources = _in_train(corpora, _examples), _in_train(corpora, _sources)
    reports = {}
    for split, corpus in corpora.items():
        sides = corpus.sides()
        is_train = split == "train"
        reports[split] = SplitReport(
            num_examples=len(corpus),
            num_empty_lines=sum(not line.strip() for lines in sides.values() for line in lines),
            num_words={role: sum(len(line.split()) for line in lines) for role, lines in sides.items()},
            num_in_train=0 if is_train else sum(row in seen for row in _examples(corpus)),
            num_sources_in_train=0 if is_train else sum(row in seen_sources for row in _sources(corpus)),
            selected=corpus.selected,
        )
    return reports


def report_json(reports: Mapping[str, SplitReport]) -> dict[str, Any]:
    """Turn reports into JSON for an artifact."""
    return {split: asdict(report) for split, report in reports.items()}


_Rows = Iterable[tuple[str, ...]]


def _in_train(corpora: Mapping[str, Corpus], rows: Callable[[Corpus], _Rows]) -> set[tuple[str, ...]]:
    """Find the rows of the other splits that train has, too; those of train may be more than memory holds."""
    others = (rows(corpus) for split, corpus in corpora.items() if split != "train")
    train = rows(corpora["train"]) if "train" in corpora else ()
    return set(chain.from_iterable(others)).intersection(train)


def _examples(corpus: Corpus) -> _Rows:
    return zip(*corpus.sides().values(), strict=True)


def _sources(corpus: Corpus) -> _Rows:
    return zip(*corpus.sources, strict=True)


def write_corpus(corpus: Corpus, directory: Path) -> None:
    """Write a corpus into a directory: a text file per stream and ``corpus.json``.

    Raises:
        DataError: A line holds a line feed or text that UTF-8 cannot encode.
    """
    directory.mkdir(parents=True, exist_ok=True)
    streams = corpus.streams()
    for role, lines in streams.items():
        if isinstance(lines, StoredLines):
            shutil.copyfile(lines.path, directory / stream_file(role))
            continue
        with (directory / stream_file(role)).open("wb") as file:
            for number, line in enumerate(lines, start=1):
                where = f"{role}, line {number}"
                if "\n" in line:
                    raise DataError(f"{where}: a line feed inside a line; replace it by a space")
                try:
                    file.write(f"{line}\n".encode())
                except UnicodeEncodeError as error:
                    raise DataError(
                        f"{where}: {error}; the text holds a lone surrogate, which UTF-8 cannot encode"
                    ) from error
    selected = asdict(corpus.selected) if corpus.selected else None
    document = {
        "format": _FORMAT,
        "examples": len(corpus),
        "streams": list(streams),
        "selected": selected,
    }
    write_json(directory / "corpus.json", document)


def read_corpus(directory: Path) -> Corpus:
    """Read a corpus that ``write_corpus`` wrote; its lines are read from its files when they are asked for.

    Raises:
        StoreError: A file is missing or disagrees with ``corpus.json``.
    """
    try:
        document = json.loads((directory / "corpus.json").read_text("utf-8"))
        streams = {role: StoredLines(directory / stream_file(role)) for role in document["streams"]}
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{directory}: not a corpus ({error})") from error
    wrong = [role for role, lines in streams.items() if len(lines) != document["examples"]]
    if wrong:
        raise StoreError(f"{directory}: {', '.join(wrong)} should hold {document['examples']} lines")
    return Corpus.from_streams(streams, Selected(**document["selected"]) if document["selected"] else None)


def read_splits(directory: Path) -> dict[str, Corpus]:
    """Read all splits of a corpus that is an artifact, by name.

    Raises:
        StoreError: As ``read_corpus``.
    """
    folders = [path for path in sorted(directory.iterdir()) if path.is_dir()]
    return {path.name: read_corpus(path) for path in folders}


def stream_file(role: str) -> str:
    """Name the file of a role in a stored corpus: ``source-0.txt``."""
    return role.replace(" ", "-") + ".txt"


# Text in columns: CSV, TSV and JSON lines, plain or compressed, UTF-8.


DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = ".jsonl"
_MAX_CELL = 1 << 30
"""Characters; a longer cell is taken for a quotation mark that was never closed."""


def table_suffix(path: str) -> str | None:
    """Return ``.csv``, ``.tsv`` or ``.jsonl`` if a file's name says so, compressed or not."""
    suffix = Path(without_compression(path)).suffix.lower()
    return suffix if suffix in (*DELIMITERS, JSON_LINES) else None


def read_table(
    path: str, columns: Mapping[str, str], max_line_chars: int
) -> tuple[dict[str, Sequence[str]], int]:
    """Read columns of a table; line feeds inside a cell become spaces, since an example is a line.

    CSV may be quoted, TSV is taken as it is. The first row holds the names of the columns, unless all columns
    that are asked for are numbers from 1. Of JSON lines a column is a key; a dot reaches inside.

    Args:
        path: The file; its name ends in .csv, .tsv or .jsonl, with or without .gz or .zst.
        columns: Column by role.
        max_line_chars: Longer cells are truncated and counted.

    Returns:
        Lines by role, and the number of truncated ones.

    Raises:
        DataError: The file is missing, broken, empty or no table, or a row lacks a column.
    """
    suffix = table_suffix(path)
    if suffix is None:
        raise DataError(
            f"{path}: a table ends in .csv, .tsv or .jsonl, with or without .gz or .zst; rename it"
        )
    read = _json_cells if suffix == JSON_LINES else _csv_cells
    spools = {role: LineSpool() for role in columns}
    num_cut = 0
    try:
        with open_file(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            for row in read(text, path, [*columns.values()]):
                for spool, cell in zip(spools.values(), row, strict=True):
                    num_cut += len(cell) > max_line_chars
                    spool.append(cell[:max_line_chars])
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}); convert it, e.g. with iconv -t UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{path}: cannot be read as {suffix[1:]} ({error})") from error
    except OSError as error:
        raise DataError(unreadable(path, error)) from error
    lines = {role: spool.lines() for role, spool in spools.items()}
    if not any(lines.values()):
        raise DataError(f"{path}: no rows; give a table with a row per example")
    return lines, num_cut


def _csv_cells(
    text: io.TextIOWrapper,
    path: str,
    columns: list[str],
) -> Iterator[list[str]]:
    delimiter = DELIMITERS[table_suffix(path) or ".csv"]
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    csv.field_size_limit(_MAX_CELL)  # the module's own, 131,072 characters, is less than a long document has
    rows = csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True)
    if all(column.isdigit() and int(column) > 0 for column in columns):
        places = [int(column) - 1 for column in columns]
    else:
        header = next(rows, [])
        for column in columns:
            if column not in header:
                raise DataError(f"{path}: no column {column!r} in its first row. {nearest(column, header)}")
            if (number := header.count(column)) > 1:
                raise DataError(f"{path}: {number} columns are named {column!r}; rename those not meant")
        places = [header.index(column) for column in columns]
    for row in rows:
        if not row:
            continue
        where = f"{path}, line {rows.line_num}"
        if max(places) >= len(row):
            raise DataError(f"{where}: {len(row)} columns, {max(places) + 1} are needed")
        yield [as_line(row[place], where=where) for place in places]


def _json_cells(
    text: io.TextIOWrapper,
    path: str,
    columns: list[str],
) -> Iterator[list[str]]:
    for number, line in enumerate(text, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{where}: not JSON ({error}); a file of JSON lines has an object per line"
            ) from error
        yield [as_line(row, column.split("."), where=where) for column in columns]


# Text from elsewhere: datasets of the Hugging Face hub and sacreBLEU's test sets.


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


def _column(
    rows: Any,
    column: str,
    where: str,
    role: str,
) -> Sequence[str]:
    first, *inside = column.split(".")
    if first not in rows.column_names:
        raise DataError(f"{where}: no column {first!r} for {role}; it has {', '.join(rows.column_names)}")
    names = getattr(rows.features.get(first), "names", None) if role == "label" else None
    return spooled(
        as_line(value, inside, names, f"{where}, {column}, example {n}")
        for n, value in enumerate(rows[first])
    )


def as_line(
    value: Any,
    inside: Sequence[str] = (),
    names: Sequence[str] | None = None,
    where: str = "",
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
