"""Systems and studies that come with nlgraft: in a wheel inside the package.

A wheel must not install a top-level package ``trainables``, which another distribution may have, too. So it
holds both folders inside ``nlgraft``, where what Python finds under ``trainables`` nowhere else is looked up.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from nlgraft.basics.errors import Problem, StudyError, did_you_mean

SYSTEMS_PACKAGE = "trainables"
STUDY_SUFFIXES = (".yaml", ".yml", ".json")
_PACKAGE = Path(__file__).parents[1]
_INSTALLED = _PACKAGE / "repository"
_ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1]
STUDIES_FOLDER = _ROOT / "search_spaces"


class _SystemFinder:
    """Finds the systems that come with nlgraft, after all other finders: modules of the user come first."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        first, *inner = name.split(".")
        folder = _ROOT.joinpath(*[first, *inner][:-1])
        if first == SYSTEMS_PACKAGE:
            return PathFinder.find_spec(name, [str(folder)])
        return None


def make_importable() -> None:
    """Let ``import trainables.NAME`` find the systems that come with nlgraft, once per process."""
    if _SystemFinder not in sys.meta_path:
        sys.meta_path.append(_SystemFinder)


def system_names() -> list[str]:
    """List the import paths of the systems that come with nlgraft."""
    modules = pkgutil.iter_modules([str(_ROOT / SYSTEMS_PACKAGE)])
    return sorted(f"{SYSTEMS_PACKAGE}.{module.name}" for module in modules if module.ispkg)


def studies() -> dict[str, Path]:
    """Map the names of the studies that come with nlgraft, ``embedding_transfer/demo``, to their files."""
    paths = sorted(STUDIES_FOLDER.glob("*/*.yaml"))
    return {f"{path.parent.name}/{path.stem}": path for path in paths}


def study_path(study: str | os.PathLike[str]) -> Path:
    """Return the path of a study: its file, or else the study of that name which comes with nlgraft.

    Args:
        study: A path; or ``demo`` or ``embedding_transfer/demo``.

    Raises:
        StudyError: Several studies that come with nlgraft have this name, or neither a file nor a study does.
    """
    path = Path(study)
    if path.exists() or path.suffix in STUDY_SUFFIXES or path.is_absolute():
        return path
    name = path.as_posix()
    matches = [key for key in studies() if name in (key, key.partition("/")[2])]
    if len(matches) == 1:
        return studies()[matches[0]]
    if matches:
        raise StudyError(
            [Problem("", f"several studies are called {name!r}: {', '.join(matches)}; give one")], name
        )
    files = [f"{name}{suffix}" for suffix in STUDY_SUFFIXES if Path(f"{name}{suffix}").exists()]
    short_names = [key.partition("/")[2] for key in studies()]
    near = did_you_mean(name, [*studies(), *short_names])
    hint = f"Did you mean '{files[0]}'?" if files else near
    reason = f"there is no file {name!r}, nor a study of this name in `nlgraft studies`. {hint}".rstrip()
    raise StudyError([Problem("", reason)], name)
