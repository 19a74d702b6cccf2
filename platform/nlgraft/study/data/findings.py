"""What checks find out about the data of a study before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nlgraft.pipeline.stage import Stage


@dataclass
class Findings:
    """Findings about the data of a study, to which one check after the other adds.

    Attributes:
        stages: All stages of the study, inputs first, those that the store holds among them.
        corpora: Counts of each split, of text in local files and constructed text, by the name of the corpus
            stage; a number from 2 follows it where cells read different corpora by that name.
        warnings: What is allowed but likely a mistake.
        problems: What cannot be used.
        read: What a check has read, by the fingerprint of its stage, for the checks of later stages.
    """

    stages: Sequence[Stage] = ()
    corpora: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    read: dict[str, Any] = field(default_factory=dict, repr=False)

    def warn(self, stage: Stage, lines: Iterable[str]) -> None:
        """Add warnings, each with the name of the stage."""
        self.warnings += [f"{stage.name}: {line}" for line in lines]

    def refuse(self, stage: Stage, lines: Iterable[str]) -> None:
        """Add problems, each with the name of the stage."""
        self.problems += [f"{stage.name}: {line}" for line in lines]
