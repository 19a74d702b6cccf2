"""Servers on loopback that tests start: a port for one, a wait for its first answer, MLflow's own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from tests.processes import patient


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def first_answer(request: str | Request, process: subprocess.Popen, log: Path | None = None) -> bytes:
    """Wait until a server that starts answers, be it with a refusal."""
    opener = build_opener(ProxyHandler({}))
    end_s = time.monotonic() + patient(120)
    while True:
        try:
            with opener.open(request, timeout=60) as answer:
                return answer.read()
        except HTTPError as refusal:  # e.g. 401, where a token is needed
            return refusal.read()
        except OSError:
            printed = log.read_text() if log else ""
            assert process.poll() is None, printed
            assert time.monotonic() < end_s, printed
            time.sleep(0.2)


@contextlib.contextmanager
def mlflow_server(tracking_uri: str, directory: Path) -> Iterator[str]:
    """Serve a tracking database; yields the address.

    Args:
        tracking_uri: The database.
        directory: For artifacts and the log.
    """
    port, log = free_port(), directory / "server.log"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", tracking_uri, "--workers", "1"]
    command += ["--artifacts-destination", str(directory / "artifacts")]
    # Its helper processes make starting slow.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with log.open("w") as output:
        server = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        first_answer(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)
