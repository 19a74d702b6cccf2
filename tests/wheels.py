"""The project as a wheel."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """Build the wheel into a folder, without the registry, and return its file."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file
