"""The table in tests/invariants/README.md names tests that exist, for every invariant."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (\d+) \| .+? \| (.+) \|$", re.MULTILINE)


def named_tests():
    """Number, file and beginning of the name of every test in the table."""
    table = (TESTS / "invariants" / "README.md").read_text(encoding="utf-8")
    for number, entry in ROW.findall(table):
        for part in entry.split("; "):
            file, names = part.split(": ")
            for name in names.split(", "):
                yield int(number), file, name


def test_every_invariant_has_its_tests():
    found = list(named_tests())
    assert {number for number, _, _ in found} == set(range(1, 40))
    missing = [
        (number, file, name)
        for number, file, name in found
        if not (TESTS / file).is_file() or f"\ndef {name}" not in (TESTS / file).read_text(encoding="utf-8")
    ]
    assert missing == []
