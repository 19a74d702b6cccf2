"""Exit codes of the commands, and one message for each error that nlgraft raises on purpose."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from nlgraft.basics.errors import (
    CapacityError,
    DataError,
    NlgraftError,
    PlaceError,
    StudyError,
    StudyLockedError,
)
from nlgraft.basics.wording import visible

_LONG_WORD = re.compile(r"([\w/.@=-]{100})[\w/.@=-]{300,}")
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_DOES_NOT_FIT = 3
EXIT_LOCKED = 4

_EXIT_CODES: list[tuple[type[NlgraftError], int]] = [
    (StudyError, EXIT_BAD_INPUT),
    (DataError, EXIT_BAD_INPUT),
    (PlaceError, EXIT_BAD_INPUT),
    (CapacityError, EXIT_DOES_NOT_FIT),
    (StudyLockedError, EXIT_LOCKED),
]


def fails_politely(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the errors that nlgraft raises on purpose into one message on stderr and an exit code."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except NlgraftError as error:
            _tell(str(error))
            code = next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_FAILED)
            raise SystemExit(code) from None
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            _tell(f"{error.filename}: no file system takes a name of this length; give a shorter one")
            raise SystemExit(EXIT_BAD_INPUT) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None

    return run


def _tell(message: str) -> None:
    click.echo(visible(_LONG_WORD.sub(r"\1…", message)), err=True)
