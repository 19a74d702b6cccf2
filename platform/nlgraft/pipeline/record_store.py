"""Small JSON documents beside the artifacts: ends of trials, proposals of searches, studies."""

from __future__ import annotations

import json
import logging
import re
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import ContractError, nearest
from nlgraft.pipeline.integrity import first_problem
from nlgraft.pipeline.local_files import Files

logger = logging.getLogger(__name__)

KINDS = ("trials", "proposals", "studies", "looks", "definitions")
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

    def read(self, kind: str, key: str, form: TypeAdapter[_Form]) -> _Form | None:
        """Read a document; None if it is missing or does not have the form."""
        path = _path(kind, key)
        data = self._files.read(path)
        if data is None:
            return None
        try:
            return form.validate_json(data)
        except ValidationError as error:
            self._set_aside(path, data, first_problem(error))
            return None

    def write(self, kind: str, key: str, document: dict[str, Any]) -> None:
        """Write a document in one step.

        Raises:
            ContractError: It holds what JSON cannot.
        """
        path = _path(kind, key)
        try:
            data = json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise ContractError(f"record {kind}/{key}: {error}") from error
        self._files.write(path, data)

    def list(self, kind: str, form: TypeAdapter[_Form], prefix: str = "") -> dict[str, _Form]:
        """Read every document of a kind whose key begins with a prefix, by sorted keys."""
        folder = f"records/{_known(kind)}"
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

    def _set_aside(self, path: str, data: bytes, problem: str) -> None:
        aside = f"{path}.corrupt"
        self._files.write(aside, data)
        self._files.delete(path, data)
        logger.warning("record %s cannot be read (%s); it was set aside as %s", path, problem, aside)


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ContractError(f"record kind {kind!r}: {nearest(kind, KINDS)}")
    return kind


def _path(kind: str, key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ContractError(f"record key {key!r}: use letters, digits, '_.=+-', and '/' between parts")
    return f"records/{_known(kind)}/{key}.json"
