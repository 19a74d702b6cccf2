"""The tables in tests/invariants/README.md name tests that exist, for every invariant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (\d+) \| .+? \| (.+) \|$", re.MULTILINE)
NUM_INVARIANTS = {"Fusion": 39, "Embedding transfer": 55}


def entries(heading):
    """Number and parts of the last column, of every row of a table."""
    text = (TESTS / "invariants" / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {heading}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [(int(number), entry.split("; ")) for number, entry in ROW.findall(section)]


@pytest.mark.parametrize("heading", NUM_INVARIANTS)
def test_every_invariant_has_its_tests(heading):
    found = entries(heading)
    assert [number for number, _ in found] == [*range(1, NUM_INVARIANTS[heading] + 1)]
    missing = []
    for number, parts in found:
        for part in parts:
            file, names = part.split(": ")
            text = (TESTS / file).read_text(encoding="utf-8") if (TESTS / file).is_file() else ""
            missing += [(number, file, name) for name in names.split(", ") if f"\ndef {name}" not in text]
    assert missing == []
