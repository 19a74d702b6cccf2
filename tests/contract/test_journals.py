"""Journals over every kind of store, see `conftest.py`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "pipeline"))


from nlgraft.pipeline import record_store
from tests.processes import at_once
from tests.store_places import files_of

NUM_ENTRIES = 3
"""Of each driver; together they fill three blocks."""


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(record_store, "BLOCK", 4)


def log_of(store):
    return store.journal("log", dict[str, int])


def fill(store, last):
    for place in range(1, last + 1):
        assert log_of(store).append(place, {"value": 10 * place})


@pytest.mark.usefixtures("small_blocks")
def test_a_journal_keeps_what_was_written_in_order(open_store):
    assert log_of(open_store()).read() == record_store.Pages({}, 0)
    fill(open_store(), 10)
    pages = log_of(open_store()).read()
    assert pages == record_store.Pages({number: {"value": 10 * number} for number in range(1, 11)}, 10)
    assert list(pages.documents) == list(range(1, 11))
    assert not log_of(open_store()).append(10, {"value": 0})
    assert log_of(open_store()).read() == pages


@pytest.mark.usefixtures("small_blocks")
def test_damaged_missing_and_foreign_files_of_a_journal_are_named(open_store):
    store = open_store()
    fill(store, 3)
    files = files_of(store)
    files.write("log/entries/000000/00000001.json", b'{"value": "ten"}')
    files.delete("log/entries/000000/00000002.json")
    files.write("log/entries/000000/notes.txt", b"mine")
    pages = log_of(store).read()
    assert pages.documents == {3: {"value": 30}}
    assert pages.last == 3
    for name in ("00000001.json: cannot be read", "00000002.json: is missing", "notes.txt: is no part"):
        assert sum(name in text for text in pages.problems) == 1
    fill_from = pages.last + 1
    assert log_of(store).append(fill_from, {"value": 40})
    assert log_of(store).append(fill_from + 1, {"value": 50})
    assert list(log_of(store).read().documents) == [3, 4, 5]


@pytest.mark.usefixtures("small_blocks")
def test_several_drivers_write_one_journal(open_store):
    def write(driver):
        log = log_of(open_store())
        for value in range(NUM_ENTRIES):
            while not log.append(log.read().last + 1, {"driver": driver, "value": value}):
                pass

    at_once(write, range(4))
    pages = log_of(open_store()).read()
    assert (pages.last, pages.problems) == (4 * NUM_ENTRIES, ())
    for driver in range(4):
        assert [
            document["value"] for document in pages.documents.values() if document["driver"] == driver
        ] == list(range(NUM_ENTRIES))
