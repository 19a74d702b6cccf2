"""Pages in a headless Chromium, and a server of MLflow to open them from."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_START_S = 120


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


@contextlib.contextmanager
def mlflow_server(tracking_uri: str) -> Iterator[str]:
    """Serve a tracking database on a free port of loopback; give the address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri,
            "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_for(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _wait_for(address: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end_s = time.monotonic() + _START_S
    while True:
        try:
            opener.open(address, timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < end_s, "the server did not start"
            time.sleep(0.5)
