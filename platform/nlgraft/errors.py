"""Everything nlgraft raises on purpose.

NlgraftError
├── StudyError          the author of a study must act; carries every problem at once   (exit 2)
├── DataError           a corpus file is missing, empty, unequal or not UTF-8          (exit 2)
│   └── PaddingError    a model computes positions from one padding id, which must stay
├── CapacityError       the study can never fit the cluster                            (exit 3)
├── StudyLockedError    another driver runs this study on this store                   (exit 4)
├── StoreError          an artifact cannot be written or read
├── StageBusy           another live owner computes the stage; try again later
├── TrialFailed         a stage of a trial failed; carries stage and reason
└── ContractError       the author of a system must act
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class NlgraftError(Exception):
    """Base of all errors that nlgraft raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a study.

    Attributes:
        path: Dotted path in the study file, e.g. ``factors.arm.baseline``; empty for the file itself.
        message: What was given, what is allowed, what to do next.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class StudyError(NlgraftError, ValueError):
    """A study is wrong; ``problems`` lists all that was found.

    Args:
        problems: Every problem found, in file order.
        source: What was read, for the message: a file or ``study``.
    """

    def __init__(self, problems: Iterable[Problem], source: str = "study") -> None:
        self.problems = list(problems)
        self.source = source
        count = len(self.problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{source}: {count} problem{'s' if count != 1 else ''}\n{lines}")


class DataError(NlgraftError, ValueError):
    """Text that was given cannot be used."""


class PaddingError(DataError):
    """A model computes positions from its padding id, and the new vocabulary has another."""


class CapacityError(NlgraftError):
    """The study asks for more than the cluster can ever give."""


class StudyLockedError(NlgraftError):
    """Another driver runs this study on this store."""


class StoreError(NlgraftError):
    """The artifact store cannot do what was asked."""


class StageBusy(NlgraftError):
    """Another live owner computes this stage.

    Args:
        fingerprint: The stage's fingerprint.
        owner: Who holds the lease, for messages.
    """

    def __init__(self, fingerprint: str, owner: str) -> None:
        self.fingerprint = fingerprint
        self.owner = owner
        super().__init__(f"stage {fingerprint[:12]} is being computed by {owner}")


class TrialFailed(NlgraftError):
    """A stage of a trial failed.

    Args:
        stage: Name of the stage.
        reason: One line: what happened.
    """

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        self.reason = reason
        super().__init__(f"{stage}: {reason}")

    def __reduce__(self) -> tuple[type[TrialFailed], tuple[str, str]]:
        return (TrialFailed, (self.stage, self.reason))


class ContractError(NlgraftError):
    """A system does not keep the contract of trainables/README.md."""


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Say what is allowed and which allowed name lies nearest.

    Args:
        name: What was given.
        allowed: The allowed names.

    Returns:
        ``"Did you mean 'x'? Allowed: a, b, x"``, the question left out when nothing is near.
    """
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.6)
    question = f"Did you mean '{near[0]}'? " if near else ""
    return f"{question}Allowed: {', '.join(allowed) or 'nothing'}"
