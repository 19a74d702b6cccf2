"""Small JSON documents beside the artifacts: ends of trials, proposals of searches, studies."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.integrity import first_problem
from nlgraft.pipeline.local_files import REMOVED
from nlgraft.pipeline.object_files import Files

logger = logging.getLogger(__name__)

Kind = Literal["trials", "proposals", "studies", "looks", "definitions"]
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]*(/[A-Za-z0-9][A-Za-z0-9_.=+-]*)*")
_Form = TypeVar("_Form")


class Records:
    """JSON documents by kind and key.

    A key has letters, digits and ``_.=+-``, with ``/`` between its parts. **Atomicity**: a document is read
    whole. **Failure**: one that does not have the expected form (a disk that filled up, a careless editor) is
    set aside under another name, named in a warning, and counts as missing.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, kind: Kind, key: str, form: TypeAdapter[_Form]) -> _Form | None:
        """Read a document; None if it is missing or does not have the form."""
        path = _path(kind, key)
        return self._decode(path, self._files.read(path), form)

    def write(self, kind: Kind, key: str, document: dict[str, Any]) -> None:
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
            if self._files.create(path, data) if before is None else self._files.replace(path, before, data):
                return

    def list(self, kind: Kind, form: TypeAdapter[_Form], prefix: str = "") -> dict[str, _Form]:
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

    def _decode(self, path: str, data: bytes | None, form: TypeAdapter[_Form]) -> _Form | None:
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


def _encode(kind: Kind, key: str, document: dict[str, Any]) -> bytes:
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ContractError(f"record {kind}/{key}: {error}") from error


def _path(kind: Kind, key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ContractError(f"record key {key!r}: use letters, digits, '_.=+-', and '/' between parts")
    return f"records/{kind}/{key}.json"
