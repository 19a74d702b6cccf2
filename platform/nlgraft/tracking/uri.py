"""Tracking URIs: validation, SQLite paths, and forms without credentials."""

from __future__ import annotations

from nlgraft.basics.errors import DataError, Problem, StudyError
from nlgraft.basics.wording import without_credentials
from nlgraft.study.reading.place_rules import sqlite_path, uri_fault

_MESSAGE_CHARS = 400
_DATABASES = ("postgresql", "mysql", "mssql", "sqlite")


def check_uri(uri: str) -> str:
    """Return a tracking URI unless MLflow cannot write to it.

    Raises:
        StudyError: It is empty, a path, a ``file:`` store, a file that is no database, or a database whose
            driver is not installed.
    """
    if fault := uri_fault(uri):
        raise StudyError([Problem("tracking.uri", fault)])
    if is_database(uri) and sqlite_path(uri) is None:
        _check_driver(uri)
    return uri


def check_readable(uri: str) -> None:
    """Check a tracking URI that is only read.

    Raises:
        StudyError: See `check_uri`.
        DataError: There is no such database, which MLflow would make.
    """
    database = sqlite_path(check_uri(uri))
    if database is not None and not database.exists():
        raise DataError(f"MLflow: there is no database {database}; give the URI that the runs were logged to")


def is_database(uri: str) -> bool:
    """Return True if MLflow writes to a database by this URI, without a server."""
    return uri.partition("://")[0].partition("+")[0].lower() in _DATABASES


def _check_driver(uri: str) -> None:
    """Refuse a database without its driver: a server that is slow to respond looks alike for ever."""
    # Takes half a second.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        kind = uri.partition("://")[0].partition("+")[0].lower()
        install = "pip install 'nlgraft[postgresql]'" if kind == "postgresql" else f"pip install {error.name}"
        raise StudyError(
            [
                Problem(
                    "tracking.uri", f"{kind} needs the driver {error.name}, which is not installed: {install}"
                )
            ]
        ) from error
    except (ArgumentError, NoSuchModuleError) as error:
        raise StudyError(
            [Problem("tracking.uri", f"is no database URI: {public_text(str(error))}")]
        ) from error


def public_text(text: str) -> str:
    """Shorten a message that may quote a URI to its first line, without credentials."""
    return without_credentials(text.strip().partition("\n")[0])[:_MESSAGE_CHARS]
