"""An append-only list of JSON documents in the store, in the order in which they arrived.

Layout: ``<name>/entries/<block>/<number>.json``, numbers from 1, and ``<name>/packs/<block>.json`` with the
documents of a full block. A number is taken by writing its file only if it is missing, so drivers need no
clock and no lock to agree on an order. A pack repeats what the entries say and is read in their place; it is
written once, by whoever fills the next block, and a damaged one costs time only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.integrity import first_problem
from nlgraft.pipeline.object_files import Files

BLOCK = 500
"""Documents of a pack: a reader opens at most this many single files, and one file for each pack."""

_NUM_THREADS = 16
_NUMBER = re.compile(r"\d{8}\.json")
_BLOCK = re.compile(r"\d{6}")
_PACK = re.compile(r"\d{6}\.json")
_Form = TypeVar("_Form")


@dataclass(frozen=True)
class Pages(Generic[_Form]):
    """What a journal holds.

    Attributes:
        documents: Documents by number, ascending; unreadable ones are left out.
        last: The highest number that is taken; 0 in an empty journal.
        problems: Files that are missing, damaged or foreign, as sentences.
    """

    documents: Mapping[int, _Form]
    last: int
    problems: tuple[str, ...] = ()


class Journal(Generic[_Form]):
    """Numbered documents of one form that are never changed.

    **Concurrency**: any number of writers; each number has one. **Failure**: a document that cannot be read
    is named and left out.

    Args:
        files: The files of the store.
        name: Folder of the journal.
        form: Type of a document.
    """

    def __init__(self, files: Files, name: str, form: type[_Form]) -> None:
        self._files = files
        self._name = name
        self._form = TypeAdapter(form)
        self._pack_form: TypeAdapter[dict[int, _Form]] = TypeAdapter(dict[int, form])  # pyright: ignore[reportInvalidTypeForm]

    def read(self) -> Pages[_Form]:
        """Read all documents."""
        problems: list[str] = []
        packed = self._packed(problems)
        documents = {number: document for block in packed.values() for number, document in block.items()}
        folders = self._matching(f"{self._name}/entries", _BLOCK, problems)
        numbers = [
            int(name.removesuffix(".json"))
            for folder in folders
            if int(folder) not in packed
            for name in self._matching(f"{self._name}/entries/{folder}", _NUMBER, problems)
        ]
        last = max([0, *documents, *numbers])
        for number, data in zip(numbers, self._read_all(map(self._entry, numbers)), strict=True):
            try:
                documents[number] = self._form.validate_json(data or b"")
            except ValidationError as error:
                problems.append(f"{self._entry(number)}: cannot be read: {first_problem(error)}")
        missing = set(range(1, last + 1)) - documents.keys() - set(numbers)
        problems += [f"{self._entry(number)}: is missing" for number in sorted(missing)]
        return Pages(dict(sorted(documents.items())), last, tuple(problems))

    def append(self, number: int, document: _Form) -> bool:
        """Write a document under a number; False if the number is taken.

        Args:
            number: One more than `Pages.last`.
            document: The document.

        Raises:
            ContractError: The number is not positive.
        """
        if number < 1:
            raise ContractError(f"{self._name} entry {number}: entries are numbered from 1")
        if not self._files.create(self._entry(number), self._form.dump_json(document)):
            return False
        # The first number of a block: the block before it is full.
        if number % BLOCK == 1:
            self._pack((number - 1) // BLOCK - 1)
        return True

    def _pack(self, block: int) -> None:
        """Write the pack of a full block, unless one of its documents cannot be read."""
        numbers = _numbers(block)
        contents = self._read_all(map(self._entry, numbers))
        try:
            documents = {
                number: self._form.validate_json(data or b"")
                for number, data in zip(numbers, contents, strict=True)
            }
        except ValidationError:
            return  # a pack without it would hide which entry is damaged
        if documents:
            self._files.create(f"{self._name}/packs/{block:06d}.json", self._pack_form.dump_json(documents))

    def _packed(self, problems: list[str]) -> dict[int, dict[int, _Form]]:
        names = self._matching(f"{self._name}/packs", _PACK, problems)
        keys = [f"{self._name}/packs/{name}" for name in names]
        packed = {}
        for key, data in zip(keys, self._read_all(keys), strict=True):
            block = int(key[-11:-5])
            try:
                documents = self._pack_form.validate_json(data or b"")
            except ValidationError as error:
                problems.append(f"{key}: {first_problem(error)}; its entries are read one by one")
                continue
            # A pack that lacks one would hide an entry that is there.
            if documents.keys() == set(_numbers(block)):
                packed[block] = documents
            else:
                problems.append(f"{key}: lacks entries; they are read one by one")
        return packed

    def _entry(self, number: int) -> str:
        return f"{self._name}/entries/{(number - 1) // BLOCK:06d}/{number:08d}.json"

    def _matching(self, folder: str, pattern: re.Pattern[str], problems: list[str]) -> list[str]:
        names = sorted(self._files.names(folder))
        foreign = [name for name in names if not pattern.fullmatch(name)]
        problems += [f"{folder}/{name}: is no part of the {self._name}" for name in foreign]
        return [name for name in names if pattern.fullmatch(name)]

    def _read_all(self, keys: Iterable[str]) -> list[bytes | None]:
        with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix=self._name) as pool:
            return list(pool.map(self._files.read, keys))


def _numbers(block: int) -> range:
    return range(block * BLOCK + 1, (block + 1) * BLOCK + 1)
