"""The tracking server of deploy/mlflow-compose.yaml: PostgreSQL, proxied artifacts, passwords."""

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

import nlgraft
from nlgraft.execution.events import TrialEnded, TrialStarted
from nlgraft.study.public import Study
from nlgraft.study.reading.documents import parse
from tests.processes import wait_until
from tests.servers import first_answer, free_port

COMPOSE = Path(__file__).parents[2] / "deploy" / "mlflow-compose.yaml"
SECRETS = {
    "DATABASE_PASSWORD": "1a2b3c4d",
    "S3_PASSWORD": "5e6f7a8b9c",
    "ADMIN_PASSWORD": "0d1e2f3a4b5c6d",
    "SESSION_KEY": "7e8f9a0b",
    "ALLOWED_HOSTS": "127.0.0.1:*",
}


class Database:
    """A PostgreSQL of Debian's binaries on 127.0.0.1, which can be killed and started again.

    Args:
        directory: Of its own.
        enter: Begin of a command that runs another one on another network.
    """

    def __init__(self, directory, enter=()):
        self.port = free_port()
        self._data, self._binaries, self._enter = directory / "data", postgresql(), enter
        self.uri = f"postgresql://mlflow:{SECRETS['DATABASE_PASSWORD']}@127.0.0.1:{self.port}/mlflow"
        password = directory / "password"
        password.write_text(SECRETS["DATABASE_PASSWORD"])
        if os.geteuid() == 0:  # as which it refuses to run
            self._enter = [*enter, "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
            for path in (directory, password):
                shutil.chown(path, "nobody")
        options = ["--username=mlflow", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync"]
        self._run("initdb", f"--pgdata={self._data}", *options)
        self.start()
        self._run("createdb", "--host=127.0.0.1", f"--port={self.port}", "--username=mlflow", "mlflow")

    def _command(self, name, *arguments):
        return [*self._enter, self._binaries / name, *arguments]

    def _run(self, name, *arguments):
        environment = {**os.environ, "PGPASSWORD": SECRETS["DATABASE_PASSWORD"], "LC_ALL": "C.UTF-8"}
        command = self._command(name, *arguments)
        subprocess.run(command, check=True, capture_output=True, cwd="/", env=environment)

    def start(self):
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._data.parent / "log").open("a") as log:
            self.process = subprocess.Popen(
                self._command("postgres", "-D", self._data, *options), cwd="/", stdout=log, stderr=log
            )
        ready = self._command("pg_isready", "--host=127.0.0.1", f"--port={self.port}", "--quiet")
        wait_until(lambda: not subprocess.run(ready, check=False).returncode, process=self.process)

    def kill(self):
        """End it at once, as if the power failed: without a checkpoint, so that it recovers from its log."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(60)


def postgresql():
    """Directory of PostgreSQL's binaries; skips the test where it or its driver is missing."""
    folders = [
        path for path in sorted(Path("/usr/lib/postgresql").glob("*/bin")) if (path / "initdb").is_file()
    ]
    folders += [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    if not folders:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if importlib.util.find_spec("psycopg") is None or importlib.util.find_spec("flask_wtf") is None:
        pytest.skip("its driver or MLflow's server with passwords is missing: pip install 'nlgraft[test]'")
    return folders[-1]


@contextlib.contextmanager
def running_database(enter=()):
    """Yield a database that ends with its directory."""
    directory = Path(tempfile.mkdtemp(prefix="nlg-pg-"))
    try:
        database = Database(directory, enter)
        try:
            yield database
        finally:
            database.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def database():
    with running_database() as database:
        yield database


@dataclass
class Server:
    """The server and what lies behind it."""

    uri: str
    database: Database
    bucket: Any


@pytest.fixture(scope="module")
def server(database, s3_server, tmp_path_factory):
    """Start the service `mlflow` of the file, with this machine in place of the services beside it."""
    keys = {"aws_access_key_id": "mlflow", "aws_secret_access_key": SECRETS["S3_PASSWORD"]}
    client = boto3.client("s3", endpoint_url=f"http://{s3_server}", region_name="us-east-1", **keys)
    client.create_bucket(Bucket="mlflow")

    text = re.sub(r"\$\{(\w+)(?::\?[^}]*)?\}", lambda match: SECRETS[match[1]], COMPOSE.read_text())
    text = text.replace("@database/", f"@127.0.0.1:{database.port}/").replace("s3:9000", s3_server)
    document = parse(text).values
    service = document["services"]["mlflow"]
    directory = tmp_path_factory.mktemp("server")
    (directory / "auth.ini").write_text(document["configs"]["auth"]["content"])
    port = free_port()
    command = service["command"].replace("--host 0.0.0.0 --port 5000", f"--host 127.0.0.1 --port {port}")
    environment = {
        **os.environ,
        **service["environment"],
        "MLFLOW_AUTH_CONFIG_PATH": str(directory / "auth.ini"),
        "AWS_DEFAULT_REGION": "us-east-1",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # its helper processes make starting slow
    }
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *shlex.split(command), "--workers", "1"],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        first_answer(f"http://127.0.0.1:{port}/health", process, directory / "log")
        yield Server(
            f"http://127.0.0.1:{port}",
            database,
            boto3.resource("s3", endpoint_url=f"http://{s3_server}", region_name="us-east-1", **keys).Bucket(
                "mlflow"
            ),
        )
    finally:
        os.killpg(process.pid, 9)
        process.wait(30)


@pytest.fixture
def user(monkeypatch):
    """The environment of a user, who has no keys of the artifact store."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRETS["ADMIN_PASSWORD"])


@pytest.mark.slow
def test_a_study_is_written_once_and_in_full_although_the_database_is_lost_meanwhile(
    server, user, toy_document, tmp_path, monkeypatch
):
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    events = []

    def on_event(event):
        events.append(type(event).__name__)
        if events.count(TrialStarted.__name__) == 1 and events[-1] == TrialStarted.__name__:
            server.database.kill()
        if events.count(TrialEnded.__name__) == 2 and events[-1] == TrialEnded.__name__:
            server.database.start()

    toy_document["resources"] = {"max_concurrent": 1}
    study = Study.from_dict(toy_document)
    result = nlgraft.launch(study, tracking_uri=server.uri, on_event=on_event)
    assert result.invocation.num_run == 4
    assert nlgraft.launch(study, tracking_uri=server.uri).invocation.num_reused == 4  # type: ignore[union-attr]

    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name("toy")
    runs = client.search_runs([experiment.experiment_id])
    kinds = [run.data.tags["nlgraft.kind"] for run in runs]
    assert sorted(kinds) == ["cell"] * 2 + ["study"] + ["trial"] * 4
    assert {run.info.status for run in runs} == {"FINISHED"}
    trials = [run for run in runs if run.data.tags["nlgraft.kind"] == "trial"]
    assert sorted(run.data.metrics["test/score"] for run in trials) == pytest.approx([3.6, 3.7, 13.6, 13.7])
    file = client.download_artifacts(trials[0].info.run_id, "metrics.json", str(tmp_path))
    assert "test/score" in Path(file).read_text()
    stored = {entry.key.rpartition("/")[2] for entry in server.bucket.objects.all()}
    assert {"metrics.json", "record.json"} <= stored
    assert not (tmp_path / "mlruns").exists()
