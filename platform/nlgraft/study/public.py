"""`nlgraft.Study`: the study with everything that is built above its values, reading and planning."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from nlgraft.basics.shipped import study_path
from nlgraft.basics.wording import count
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data import study
from nlgraft.study.data.design import cells
from nlgraft.study.data.plan import Plan
from nlgraft.study.planning.planner import plan
from nlgraft.study.reading import documents
from nlgraft.study.reading.knobs import study_schema, system_schema
from nlgraft.study.reading.reader import read_study, record_study, recorded_study
from nlgraft.study.reading.system_import import load_system


class Study(study.Study):
    """A question: system, data, factors, search, budget and seeds.

    Made by `from_yaml` or `from_dict`, which report every problem at once.
    """

    @classmethod
    def from_yaml(
        cls,
        path: str | os.PathLike[str],
        overrides: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Read and check a study file.

        Args:
            path: A YAML 1.2 file, or the name of a study that comes with nlgraft, ``demo``. Relative paths in
                it start at its directory.
            overrides: ``@scale`` and ``key=value``; scales are applied first, each kind in the order given. A
                key whose first part is no field of a study lies inside ``base``.
            environ: Where ``${env:NAME}`` is looked up; None for the environment of this process.

        Raises:
            StudyError: Lists all problems with their paths and lines.
        """
        environ = os.environ if environ is None else environ
        path = study_path(path)
        return read_study(documents.read_file(path), overrides, environ, str(path), cls, path.parent)

    @classmethod
    def from_dict(
        cls,
        document: Mapping[str, Any],
        overrides: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Check a study that is already parsed; arguments and errors as for `from_yaml`.

        Relative paths start at the working directory.
        """
        environ = os.environ if environ is None else environ
        return read_study(documents.from_values(document), overrides, environ, "study", cls, Path.cwd())

    @classmethod
    def from_store(cls, name: str, store: ArtifactStore) -> Self:
        """Read a study that was run on a store by its name, overrides included: see `variant`.

        Raises:
            StudyError: The store has no such study, or this version of nlgraft refuses it.
        """
        return recorded_study(name, store, cls)

    def record(self, store: ArtifactStore) -> None:
        """Record the study in a store, for `from_store`; the newest one of a name is kept."""
        record_study(self, store)

    def __repr__(self) -> str:
        varied = ", ".join([*self.factors, *(f"without {name}" for name in self.components)])
        trials = f"{count(len(cells(self)), 'cell')} x {count(len(self.seeds), 'seed')}"
        if self.search is not None:
            trials += f", {count(self.search.trials, 'search trial')} per cell"
        return (
            f"Study {self.variant}: {self.system}, {trials}\n"
            f"  varied: {varied or 'nothing'}; objective: {self.objective.metric}\n"
            "  next: .plan() for trials, time and disk; nlgraft.launch(study); .to_yaml() for all of it"
        )

    __str__ = __repr__

    def to_yaml(self, *, is_public: bool = False) -> str:
        """Write the study as YAML, defaults included; `from_yaml` reads an equal study from it.

        Args:
            is_public: Mask the passwords in URIs, for logs and reports. Such text is another study.
        """
        values = self.to_dict()
        return documents.write_yaml(documents.masked(values) if is_public else values)

    @classmethod
    def json_schema(cls, system: str | None = None) -> dict[str, Any]:
        """Describe study files to editors, as a JSON schema of draft 2020-12.

        Args:
            system: Import path of a system, whose settings and metrics the schema then knows.

        Raises:
            StudyError: There is no such system.
        """
        return study_schema() if system is None else system_schema(load_system(system))

    def plan(
        self,
        store: ArtifactStore | None = None,
        capacity: Mapping[str, float] | None = None,
    ) -> Plan:
        """Work out what a run would do; see `nlgraft.study.planning.planner.plan`.

        Args:
            store: The store to compare with; None for the study's own.
            capacity: Capacity of the cluster, by Ray's resource names; None if unknown: then everything fits.
        """
        return plan(self, store or ArtifactStore.open(self.storage.path), capacity)
