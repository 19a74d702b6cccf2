"""Tracking URIs: what they may be, where a SQLite one lies, how one is shown to people."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from nlgraft.errors import Problem, StudyError

_CREDENTIALS = re.compile(r"://[^/\s@]+@")
_MESSAGE_CHARS = 400
_FILE_STORE = (
    "{uri!r} is an MLflow file store, which MLflow no longer writes. Allowed: sqlite:///PATH.db, an "
    "http(s):// server, or another database. To keep what is in it, run `mlflow migrate-filestore "
    "--source {source} --target sqlite:///mlflow.db` and give sqlite:///mlflow.db here"
)


def check_uri(uri: str) -> str:
    """Refuse tracking URIs that MLflow cannot write to.

    Args:
        uri: The tracking URI of a study.

    Returns:
        The same URI.

    Raises:
        StudyError: It is empty, a path, or a ``file:`` store.
    """
    if not uri.strip():
        raise StudyError([Problem("tracking.uri", "is empty. Give sqlite:///PATH.db or http://HOST:PORT")])
    scheme = urlsplit(uri).scheme.lower()
    if uri in ("databricks", "databricks-uc", "uc") or scheme not in ("", "file"):
        return uri
    source = uri if scheme == "" else urlsplit(uri).path
    raise StudyError([Problem("tracking.uri", _FILE_STORE.format(uri=uri, source=source))])


def sqlite_path(uri: str) -> Path | None:
    """Find the database file of a SQLite URI.

    Args:
        uri: A tracking URI.

    Returns:
        The file's absolute path; None for every other kind of URI and for a database in memory.
    """
    scheme, separator, rest = uri.partition(":///")
    if scheme.split("+")[0] != "sqlite" or not separator:
        return None
    name = rest.partition("?")[0]
    return None if name in ("", ":memory:") else Path(name).absolute()


def public_text(text: str) -> str:
    """Write a message so that it can be shown: one line, no longer than needed, no passwords in URIs.

    Args:
        text: A message that may quote a URI.

    Returns:
        Its first line, shortened; credentials replaced by ``***``.
    """
    line = text.strip().partition("\n")[0]
    return _CREDENTIALS.sub("://***@", line)[:_MESSAGE_CHARS]


def public_uri(uri: str) -> str:
    """Write a URI so that it can be shown: without the password.

    Args:
        uri: A tracking URI.

    Returns:
        The URI, a password replaced by ``***``.
    """
    parts = urlsplit(uri)
    if parts.password is None:
        return uri
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))
