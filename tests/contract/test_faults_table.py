"""docs/faults.md: every row names tests that exist, and those that are said to verify do."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROWS = re.findall(
    r"^\| (F\d\d|) \| .+? \| .+? \| ([a-z, ]+) \| (\S+): (.+) \|$",
    (TESTS.parent / "docs" / "faults.md").read_text("utf-8"),
    re.M,
)


def source_of(file, test):
    match = re.search(
        rf"^def {test}\(.*?(?=^def |^@|\Z)", (TESTS / file).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert match, f"{file} has no {test}"
    return match[0]


def test_every_row_names_tests_that_exist_and_verify_where_that_is_said():
    assert len(ROWS) > 30
    for _, checks, file, tests in ROWS:
        sources = [source_of(file, test) for test in tests.split(", ")]
        assert {*checks.split(", ")} <= {"verify", "table", "state"}
        if "verify" in checks:
            assert [source for source in sources if "verify" not in source] == []
