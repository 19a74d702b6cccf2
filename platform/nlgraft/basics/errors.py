"""The errors that nlgraft raises on purpose.

NlgraftError
├── StudyError          a study is invalid; carries all its problems                   (exit 2)
├── DataError           a file or an option cannot be used                             (exit 2)
│   └── PaddingError    a model computes positions from its padding id, which must stay the same
├── CapacityError       the study can never fit the cluster                            (exit 3)
├── StudyLockedError    another driver runs this study on this store                   (exit 4)
├── ClusterError        a Ray cluster cannot be reached, or was lost
├── StoreError          an artifact cannot be written or read
│   ├── PlaceError      a place can be no store                                        (exit 2)
│   └── HostFault       a disk of one host fails or is full; others may go on
├── StageBusy           another live process computes the stage; try again later
├── TrialFailed         a stage of a trial failed; carries stage and reason
└── ContractError       a system breaks the contract of trainables/README.md
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from nlgraft.basics.wording import name_some, visible

# What `nlgraft verify` finds wrong.


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        place: ``store``, ``Optuna`` or ``MLflow``.
        what: What is wrong, and with which trial.
        remedy: What to do next.
    """

    place: str
    what: str
    remedy: str


RUN_AGAIN = "`nlgraft run` of this study completes it"


_MAX_NAMES = 500
"""Most names that an error message lists, or compares a name with, which takes 5 ms."""


class NlgraftError(Exception):
    """Base of all errors that nlgraft raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One problem of a study.

    Attributes:
        path: Dotted path in the study file, e.g. ``factors.arm.baseline``; empty for the file itself.
        message: The given value, the allowed ones, and what to do next.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class StudyError(NlgraftError, ValueError):
    """A study is invalid.

    Args:
        problems: Every problem found, in file order.
        source: What was read: a file, the path of a system, or ``study``.
    """

    def __init__(self, problems: Iterable[Problem], source: str = "study") -> None:
        self.problems = list(problems)
        self.source = source
        count = len(self.problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{source}: {count} problem{'s' if count != 1 else ''}\n{lines}")


class DataError(NlgraftError, ValueError):
    """A file, its text or an option cannot be used."""


class PaddingError(DataError):
    """A model computes positions from its padding id, and the new vocabulary has a different one."""


class CapacityError(NlgraftError):
    """A trial of the study can never fit the cluster."""


class ClusterError(NlgraftError):
    """A Ray cluster cannot be reached, or was lost while it ran."""


class StudyLockedError(NlgraftError):
    """Another driver runs this study on this store."""


class StoreError(NlgraftError):
    """An artifact cannot be written or read."""


class PlaceError(StoreError):
    """A place can be no artifact store."""


class HostFault(StoreError):
    """A disk of one host fails or is full, while the store and other hosts may be sound."""


class StageBusy(NlgraftError):
    """Another live process computes this stage.

    Args:
        owner: Holder of the stage's lease, for messages.
    """

    def __init__(self, fingerprint: str, owner: str) -> None:
        self.fingerprint = fingerprint
        self.owner = owner
        super().__init__(f"stage {fingerprint[:12]} is being computed by {owner}")


class TrialFailed(NlgraftError):
    """A stage of a trial failed.

    Args:
        stage: Name of the stage.
        reason: One line.
    """

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        self.reason = reason
        super().__init__(f"{stage}: {reason}")

    # Pickled between processes: by default an exception is rebuilt from its message alone.
    def __reduce__(self) -> tuple[type[TrialFailed], tuple[str, str]]:
        return (TrialFailed, (self.stage, self.reason))


class ContractError(NlgraftError):
    """A system breaks the contract of trainables/README.md."""


_LEAST_PART = 3


def nearest(name: str, allowed: Sequence[str]) -> str:
    """List the allowed names, or the first ones of very many, and suggest the nearest of these.

    Returns:
        ``"Did you mean 'x'? Allowed: a, b, x"``; without the question if no allowed name is similar.
    """
    return f"{did_you_mean(name, allowed)} Allowed: {name_some(allowed, _MAX_NAMES) or 'nothing'}".lstrip()


def did_you_mean(name: str, allowed: Sequence[str]) -> str:
    """Suggest the nearest of the first 500 names: ``"Did you mean 'x'?"``; empty if none is similar."""
    near = difflib.get_close_matches(name, allowed[:_MAX_NAMES], n=1, cutoff=0.6)
    if not near and len(name) >= _LEAST_PART:
        part = name.lower()
        near = [other for other in allowed[:_MAX_NAMES] if part in re.split(r"[._/]", other.lower())]
    return f"Did you mean '{near[0]}'?" if near else ""


# Exit codes of the commands, and one message for each error that nlgraft raises on purpose.


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


def user_errors(command: Callable[..., None]) -> Callable[..., None]:
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
