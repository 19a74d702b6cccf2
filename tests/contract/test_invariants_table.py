"""docs/invariants.md: every row names existing tests, and every test of tests/invariants has a row."""

import re
from itertools import groupby
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| ([A-Z])(\d+) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall((TESTS.parent / "docs" / "invariants.md").read_text(encoding="utf-8"))
CITED = re.compile(r"(?:\b[Ii]nvariants? |\"\"\")((?:[FVR]\d+(?:, | and | to )?)+)")


def named():
    """File and test of every row."""
    return {
        (file, name)
        for *_, tests in ROWS
        for file, names in (part.split(": ") for part in tests.split("; "))
        for name in names.split(", ")
    }


def written(files):
    """File and test of every test function."""
    return {
        (path.relative_to(TESTS).as_posix(), name)
        for path in files
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_rows_are_numbered_and_say_one_sentence_with_its_source():
    numbers = {letter: [int(row[1]) for row in rows] for letter, rows in groupby(ROWS, lambda row: row[0])}
    assert numbers == {
        letter: [*range(1, len(numbers_of_letter) + 1)] for letter, numbers_of_letter in numbers.items()
    }
    assert set(numbers) == {"F", "V", "R"}
    assert [row for row in ROWS if not re.fullmatch(r"[A-Z][^.]*(?:\.\d[^.]*)*\.", row[2])] == []
    assert [row for row in ROWS if not re.search(r"\(\d{4}\)|^ours$", row[3])] == []


def test_every_named_test_exists():
    assert named() - written(TESTS.rglob("test_*.py")) == set()


def test_every_test_of_the_invariants_is_named():
    assert written((TESTS / "invariants").glob("test_*.py")) - named() == set()


def test_numbers_in_docstrings_are_those_of_rows():
    row_numbers = {f"{letter}{number}" for letter, number, *_ in ROWS}
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")]
    cited = {
        number for text in texts for span in CITED.findall(text) for number in re.findall(r"[A-Z]\d+", span)
    }
    assert len(cited) > len(row_numbers) / 2
    assert cited - row_numbers == set()
