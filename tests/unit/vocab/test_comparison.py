"""Statements of the READMEs on vocabulary transfer are backed: named tests and methods exist."""

import re
from pathlib import Path

from nlgraft.vocab.methods.registry import METHODS

ROOT = Path(__file__).parents[3]
README = (ROOT / "trainables" / "embedding_transfer" / "README.md").read_text()
COMPARISON = README[README.index("## Beside other tools") :]


def test_each_line_of_the_comparison_names_a_test_that_exists():
    rows = [line for line in COMPARISON.splitlines() if line.startswith("|") and ".py::" in line]
    assert len(rows) >= 15
    for row in rows:
        ((path, name),) = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert f"\ndef {name}(" in (ROOT / "tests" / path).read_text(), row


def test_each_line_has_a_cell_for_everyone():
    head, *rest = [line for line in COMPARISON.split("\n\n")[2].splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rest} == {head.count("|")}


def test_as_many_methods_as_it_says():
    assert "seventeen, a control, ATT and PATT" in COMPARISON
    assert len(METHODS) == 18
