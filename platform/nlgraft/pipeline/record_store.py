"""Small JSON documents beside the artifacts: ends of trials, proposals of searches, studies."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from typing import Any

from nlgraft.errors import ContractError, nearest
from nlgraft.pipeline.files import Files

logger = logging.getLogger(__name__)

KINDS = ("trials", "proposals", "studies")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]*(/[A-Za-z0-9][A-Za-z0-9_.=+-]*)*")


class Records:
    """JSON documents by kind and key.

    **Atomicity**: a document is read whole. **Failure**: one that cannot be read (a disk that filled up, a
    careless editor) is set aside under another name, named in a warning, and counts as missing.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, kind: str, key: str, required: Iterable[str] = ()) -> dict[str, Any] | None:
        """Read a document.

        Args:
            kind: One of `KINDS`.
            key: Letters, digits and ``_.=+-``, with ``/`` between parts.
            required: Names that the document must have; one without them cannot be read.

        Returns:
            The document; None when it is missing or cannot be read.
        """
        path = _path(kind, key)
        data = self._files.read(path)
        if data is None:
            return None
        try:
            document = json.loads(data)
        except ValueError as error:
            return self._set_aside(path, data, str(error))
        if not isinstance(document, dict):
            return self._set_aside(path, data, f"it holds a {type(document).__name__}, not an object")
        missing = [name for name in required if name not in document]
        if missing:
            return self._set_aside(path, data, f"it lacks {', '.join(missing)}")
        return document

    def write(self, kind: str, key: str, document: dict[str, Any]) -> None:
        """Write a document in one step.

        Args:
            kind: One of `KINDS`.
            key: See `read`.
            document: JSON values only.

        Raises:
            ContractError: It holds what JSON cannot.
        """
        path = _path(kind, key)
        try:
            data = json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise ContractError(f"record {kind}/{key}: {error}") from error
        self._files.write(path, data)

    def list(self, kind: str, prefix: str = "", required: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
        """Read every document of a kind.

        Args:
            kind: One of `KINDS`.
            prefix: Only keys that begin with this.
            required: See `read`.

        Returns:
            Documents by key, keys sorted.
        """
        folder = f"records/{_known(kind)}"
        # List the deepest folder the prefix names in full, not the whole kind.
        inner = prefix.rpartition("/")[0]
        documents = {}
        for path in sorted(self._files.sizes(f"{folder}/{inner}" if inner else folder)):
            key = path[len(folder) + 1 :].removesuffix(".json")
            if not path.endswith(".json") or not key.startswith(prefix):
                continue
            document = self.read(kind, key, required)
            if document is not None:
                documents[key] = document
        return documents

    def _set_aside(self, path: str, data: bytes, error: str) -> None:
        aside = f"{path}.corrupt"
        self._files.write(aside, data)
        self._files.delete(path)
        logger.warning("record %s cannot be read (%s); it was set aside as %s", path, error, aside)


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ContractError(f"record kind {kind!r}: {nearest(kind, KINDS)}")
    return kind


def _path(kind: str, key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ContractError(f"record key {key!r}: use letters, digits, '_.=+-', and '/' between parts")
    return f"records/{_known(kind)}/{key}.json"
