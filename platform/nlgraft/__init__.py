"""Ablations of pretrained language models grafted onto text generation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

# `python -m nlgraft` looks for modules in the working directory first, which may hold anybody's numpy.py.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]

from nlgraft.basics.shipped import make_importable

if TYPE_CHECKING:
    from nlgraft.api import Handle, export_model, launch, load, load_model, propose, register
    from nlgraft.study.public import Study

    __version__: str

__all__ = ["Handle", "Study", "export_model", "launch", "load", "load_model", "propose", "register"]

make_importable()


def __getattr__(name: str) -> Any:
    """Import a public name on first use: reading a study needs neither Ray nor torch."""
    if name == "Study":
        from nlgraft.study.public import Study

        return Study
    if name == "__version__":
        from importlib.metadata import version

        return version("nlgraft")
    if name in __all__:
        from nlgraft import api

        return getattr(api, name)
    raise AttributeError(f"module 'nlgraft' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, also those that are not imported yet."""
    return sorted([*__all__, "__version__"])
