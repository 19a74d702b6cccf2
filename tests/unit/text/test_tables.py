"""Text in columns: what a spreadsheet, a script or a hub would write."""

import csv
import json

import pyarrow
import pytest
from pydantic import ValidationError

from nlgraft.basics.errors import DataError
from nlgraft.text.corpora import load_corpus, read_table
from nlgraft.text.corpus_config import FilesConfig, digest

ROWS = [("a dog, big", "ein Hund"), ('he said "x"', "er\nsagte"), ("Ünïcode\u2028c", "d")]
LINES = {"source 0": ["a dog, big", 'he said "x"', "Ünïcode\u2028c"], "target": ["ein Hund", "er sagte", "d"]}


def write_csv(path):
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # as spreadsheets do
        writer = csv.writer(file)
        writer.writerow(["id", "en", "de"])
        writer.writerows([(number, *row) for number, row in enumerate(ROWS)])
    return {"source 0": "en", "target": "de"}


def write_tsv(path):
    rows = [("0", en, de.replace("\n", " ")) for en, de in ROWS]
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    return {"source 0": "2", "target": "3"}


def write_jsonl(path):
    lines = [json.dumps({"pair": {"en": en, "de": de}, "id": 1}) + "\n" for en, de in ROWS]
    path.write_text("".join(lines), "utf-8")
    return {"source 0": "pair.en", "target": "pair.de"}


@pytest.mark.parametrize(
    "name, write", [("x.csv", write_csv), ("x.tsv", write_tsv), ("x.jsonl", write_jsonl)]
)
def test_every_kind_of_table_gives_the_same_lines(tmp_path, name, write):
    path = tmp_path / name
    columns = write(path)
    assert read_table(str(path), columns, 1000) == (LINES, 0)
    for codec, suffix in (("gzip", "gz"), ("zstd", "zst")):
        packed = tmp_path / f"{name}.{suffix}"
        packed.write_bytes(pyarrow.compress(path.read_bytes(), codec=codec, asbytes=True))
        assert read_table(str(packed), columns, 1000) == (LINES, 0)
    cut, num_cut = read_table(str(path), columns, 8)
    assert (cut["target"], num_cut) == (["ein Hund", "er sagte", "d"], 3)


def test_a_document_longer_than_the_csv_module_allows_is_read(tmp_path):
    document = "word " * 40_000 + "end"
    path = tmp_path / "x.csv"
    path.write_text(f'text,label\n"{document}",long\nshort,short\n', "utf-8")
    lines, num_cut = read_table(str(path), {"text": "text"}, 1 << 20)
    assert (lines["text"], num_cut) == ([document, "short"], 0)


@pytest.mark.parametrize(
    "name, text, columns, message",
    [
        ("x.csv", "en,de\na,b\n", ["eng"], r"no column 'eng' in its first row. Did you mean 'en'\? Allowed"),
        ("x.csv", "en,de\na\n", ["de"], r"line 2: 1 columns, 2 are needed"),
        ("x.csv", 'en,de\n"a\n', ["de"], r"cannot be read as csv \(unexpected end of data\)"),
        ("x.csv", "en,de\n", ["de"], r"no rows"),
        ("x.tsv", "a\tb\n", ["3"], r"line 1: 2 columns, 3 are needed"),
        ("x.jsonl", '{"en": "a"}\n{"en": 1, \n', ["en"], r"line 2: not JSON"),
        ("x.jsonl", '{"en": "a"}\n', ["de"], r"line 1: no 'de' inside; it has en"),
        ("x.jsonl", '{"en": ["a"]}\n', ["en"], r"line 1: list instead of text"),
        ("x.jsonl", '{"en": "\\ud800"}\n', ["en"], r"line 1: .* no text has"),
        ("x.jsonl", '{"en": ' + "[" * 100_000, ["en"], r"line 1: not JSON .*recursion"),
        ("x.csv", "en,de,en\na,b,c\n", ["en", "de"], r"2 columns are named 'en'"),
        ("x.csv", "en,de\na,b\nc\0,d\n", ["en", "de"], r"line 3: '\\x00', which no text has"),
        ("x.txt", "a\n", ["1"], r"a table ends in .csv, .tsv or .jsonl"),
        ("y.csv", None, ["1"], r"no such file or directory"),
    ],
)
def test_a_table_that_cannot_be_used_says_where_and_why(tmp_path, name, text, columns, message):
    if text is not None:
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        read_table(str(tmp_path / name), dict(enumerate(columns)), 100)


def test_a_table_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"en\n\xff\n")
    with pytest.raises(DataError, match=r"x.csv: not UTF-8"):
        read_table(str(tmp_path / "x.csv"), {"source 0": "en"}, 100)


def corpus_of(directory, **splits):
    return FilesConfig.model_validate_json(
        json.dumps({"corpus": "files", **splits}), context={"directory": str(directory)}, strict=True
    )


def test_a_split_names_columns_of_its_table_relative_to_the_study(tmp_path):
    write_csv(tmp_path / "x.csv")
    split = {"table": "x.csv", "sources": "en", "target": "de"}
    config = corpus_of(tmp_path, train=split, dev=split)
    assert config.train.table == str(tmp_path / "x.csv")
    assert load_corpus(config)["train"].streams() == LINES
    with pytest.raises(ValidationError, match="every split needs the same files"):
        corpus_of(tmp_path, train=split, dev={"table": "x.csv", "sources": "en"})


def test_text_and_columns_identify_a_table_not_its_place(tmp_path):
    def digest_of(directory, **changes):
        directory.mkdir(exist_ok=True)
        write_csv(directory / "x.csv")
        split = {"table": "x.csv", "sources": "en", "target": "de", **changes}
        return digest(corpus_of(directory, train=split, dev=split))

    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b")
    assert digest_of(tmp_path / "a") != digest_of(tmp_path / "b", sources="id")


def test_a_table_given_as_lines_is_refused(tmp_path):
    """Its header would be an example, and its commas text."""
    write_csv(tmp_path / "x.csv")
    split = {"sources": "x.csv"}
    with pytest.raises(
        DataError, match=r"train: .*x.csv would be read as lines, header and all; name columns"
    ):
        load_corpus(corpus_of(tmp_path, train=split, dev=split))
