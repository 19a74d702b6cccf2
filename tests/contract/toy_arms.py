"""All systems, and the arms of each at a size of seconds, from `tests.contract.toys`."""

import importlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SYSTEMS = sorted(
    f"{folder}.{path.parent.name}"
    for folder in ("examples", "trainables")
    for path in ROOT.glob(f"{folder}/*/config.py")
)
"""Import paths of the systems."""


def toys_of(path: str) -> Path:
    """The file that has the toy configs of a system."""
    return ROOT / "tests" / "contract" / "toys" / f"{path.rpartition('.')[2]}.py"


def arms_of(path: str) -> dict[str, dict[str, Any]]:
    """Toy configs of every arm of a system; none where the file is missing, of which one test says so."""
    toys = toys_of(path)
    return importlib.import_module(f"tests.contract.toys.{toys.stem}").ARMS if toys.is_file() else {}


def study_of(system: str, toy: dict[str, Any], metric: str, direction: str = "maximize") -> dict[str, Any]:
    """A study file of one arm, with one seed."""
    return {
        "name": "toy",
        "system": f"trainables.{system}",
        "data": toy["data"],
        "base": {name: value for name, value in toy.items() if name != "data"},
        "objective": {"metric": metric, "direction": direction},
        "seeds": [1],
    }
