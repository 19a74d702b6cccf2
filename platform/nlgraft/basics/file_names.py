"""Names of files in indexes and manifests: whoever wrote the list may have meant another folder."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def is_inside(name: object) -> bool:
    """Return True if a value is a relative POSIX path that stays below the folder that it is joined to."""
    if not isinstance(name, str) or "\\" in name or "\0" in name:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def _checked(name: str) -> str:
    if not is_inside(name):
        raise ValueError(f"the name {name!r} leads outside the folder")
    return name


# Whoever can write to the store can write a manifest, so every name in one is checked when it is read.
FileName = Annotated[str, AfterValidator(_checked)]
