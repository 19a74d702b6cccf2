"""Small JSON documents beside the artifacts: records (ends of trials, proposals, studies) and journals."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.integrity import first_problem
from nlgraft.pipeline.local_files import REMOVED
from nlgraft.pipeline.object_files import Files

logger = logging.getLogger(__name__)

Kind = Literal["trials", "proposals", "studies", "looks", "definitions"]
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]*(/[A-Za-z0-9][A-Za-z0-9_.=+-]*)*")
_Form = TypeVar("_Form")


@dataclass(eq=False)
class Records:
    """JSON documents by kind and key.

    A key has letters, digits and ``_.=+-``, with ``/`` between its parts. **Atomicity**: a document is read
    whole. **Failure**: one that does not have the expected form (a disk that filled up, a careless editor) is
    set aside under another name, named in a warning, and counts as missing.
    """

    _files: Files

    def read(
        self,
        kind: Kind,
        key: str,
        form: TypeAdapter[_Form],
    ) -> _Form | None:
        """Read a document; None if it is missing or does not have the form."""
        path = _path(kind, key)
        return self._decode(path, self._files.read(path), form)

    def write(
        self,
        kind: Kind,
        key: str,
        document: dict[str, Any],
    ) -> None:
        """Write a document in one step.

        Raises:
            ContractError: It holds what JSON cannot.
        """
        self._files.write(_path(kind, key), _encode(kind, key, document))

    def write_unless(
        self,
        kind: Kind,
        key: str,
        document: dict[str, Any],
        form: TypeAdapter[_Form],
        is_final: Callable[[_Form], bool],
    ) -> None:
        """Write a document in one step, unless a final one is there or arrives meanwhile."""
        path, data = _path(kind, key), _encode(kind, key, document)
        while True:
            before = self._files.read(path)
            stored = self._decode(path, before, form)
            if stored is not None and is_final(stored):
                return
            if self._files.replace(path, before, data):
                return

    def list(
        self,
        kind: Kind,
        form: TypeAdapter[_Form],
        prefix: str = "",
    ) -> dict[str, _Form]:
        """Read every document of a kind whose key begins with a prefix, by sorted keys."""
        folder = f"records/{kind}"
        # List the deepest folder that the prefix names in full, not the whole kind.
        inner = prefix.rpartition("/")[0]
        documents = {}
        for path in sorted(self._files.sizes(f"{folder}/{inner}" if inner else folder)):
            key = path[len(folder) + 1 :].removesuffix(".json")
            if not path.endswith(".json") or not key.startswith(prefix):
                continue
            document = self.read(kind, key, form)
            if document is not None:
                documents[key] = document
        return documents

    def _decode(
        self,
        path: str,
        data: bytes | None,
        form: TypeAdapter[_Form],
    ) -> _Form | None:
        if data in (None, REMOVED):
            return None
        try:
            return form.validate_json(data)
        except ValidationError as error:
            aside, problem = f"{path}.corrupt", first_problem(error)
        self._files.write(aside, data)
        self._files.replace(path, data, REMOVED)
        logger.warning("record %s cannot be read (%s); it was set aside as %s", path, problem, aside)
        return None


def _encode(
    kind: Kind,
    key: str,
    document: dict[str, Any],
) -> bytes:
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ContractError(f"record {kind}/{key}: {error}") from error


def _path(kind: Kind, key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ContractError(f"record key {key!r}: use letters, digits, '_.=+-', and '/' between parts")
    return f"records/{kind}/{key}.json"


# An append-only list of JSON documents, in the order in which they arrived.
#
# A number is taken by writing its file only if it is missing, so drivers need no clock and no lock to agree
# on an order.


BLOCK = 500
"""Entries of a folder: ``<name>/entries/<block>/<number>.json``, numbers from 1."""

_NUM_THREADS = 16


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

    def __init__(
        self,
        files: Files,
        name: str,
        form: type[_Form],
    ) -> None:
        self._files = files
        self._name = name
        self._form = TypeAdapter(form)

    def read(self) -> Pages[_Form]:
        """Read all documents."""
        numbers: list[int] = []
        problems: list[str] = []
        for key in sorted(self._files.sizes(f"{self._name}/entries")):
            stem = key.rpartition("/")[2].removesuffix(".json")
            number = int(stem) if stem.isdecimal() else 0
            if key == self._entry(number):
                numbers.append(number)
            else:
                problems.append(f"{key}: is no part of the {self._name}")
        documents: dict[int, _Form] = {}
        with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix=self._name) as pool:
            contents = pool.map(self._files.read, map(self._entry, numbers))
            for number, data in zip(numbers, contents, strict=True):
                try:
                    documents[number] = self._form.validate_json(data or b"")
                except ValidationError as error:
                    problems.append(f"{self._entry(number)}: cannot be read: {first_problem(error)}")
        last = max(numbers, default=0)
        missing = set(range(1, last + 1)).difference(numbers)
        problems += [f"{self._entry(number)}: is missing" for number in sorted(missing)]
        return Pages(documents, last, tuple(problems))

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
        return self._files.create(self._entry(number), self._form.dump_json(document))

    def _entry(self, number: int) -> str:
        return f"{self._name}/entries/{(number - 1) // BLOCK:06d}/{number:08d}.json"
