"""The shell toy that comes with nlgraft, alone and behind a stage that prepares its items."""

from pathlib import Path
from typing import Any

_SHELL = Path(__file__).parents[3] / "search_spaces" / "command" / "shell"
_METRICS = {
    "dev/loss": {"direction": "minimize", "unit": "squared distance"},
    "dev/item.reached": {"direction": "maximize", "unit": "share"},
    "test/item.reached": {"direction": "maximize", "unit": "share"},
}
_FILES = ["progress.jsonl", "items.csv"]
_RATE = {"type": "float", "default": 0.05, "min": 0, "max": 1}
ARMS: dict[str, dict[str, Any]] = {
    "alone": {
        "data": {"directory": str(_SHELL)},
        "declare": {"rate": _RATE},
        "metrics": _METRICS,
        "stages": {"descend": {"command": "sh simulate.sh {rate} {seed} items.txt", "metrics": _FILES}},
    },
    "staged": {
        "data": {"directory": str(_SHELL), "files": {"items": str(_SHELL / "items.txt")}},
        "declare": {
            "rate": _RATE,
            "is_cut": {"type": "bool", "default": True},
            "lines": {"type": "int", "default": 30, "min": 10, "max": 80, "when": {"is_cut": [True]}},
        },
        "settings": {"lines": 20},
        "metrics": _METRICS,
        "stages": {
            "prepare": {
                "command": "sh -c 'head -n ${{LINES:-80}} {data.items} > few.txt' {is_cut}",
                "environment": {"LINES": "{lines}"},
                "keep": ["few.txt"],
            },
            "descend": {
                "command": "sh simulate.sh {rate} {seed} {needs.prepare}/few.txt",
                "needs": ["prepare"],
                "metrics": _FILES,
            },
        },
    },
}
