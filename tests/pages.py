"""Pages in a headless Chromium."""

import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(address: str, profile: Path, *options: str) -> str:
    """Open a page, wait for what it loads, and return its document; options are Chromium's."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server",
            "--hide-scrollbars", "--virtual-time-budget=25000", f"--user-data-dir={profile}",
            *options, "--dump-dom", address,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    return done.stdout
