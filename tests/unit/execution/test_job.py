"""What `nlgraft submit` says besides the job id."""

from pathlib import Path

import pytest
import ray.job_submission

from nlgraft.errors import NlgraftError
from nlgraft.execution import job_package
from nlgraft.execution.job import next_commands, runtime_env, submit_run
from nlgraft.execution.job_package import LEFT_OUT, JobPackage

ROOT = Path(__file__).parents[3]


def test_the_next_commands_name_the_job_the_address_and_the_token(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert list(next_commands("raysubmit_1", "http://head:8265").values()) == [
        "ray job status --address http://head:8265 raysubmit_1",
        "ray job logs --follow --address http://head:8265 raysubmit_1",
        "ray job stop --address http://head:8265 raysubmit_1",
    ]
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert next_commands("raysubmit_1", None)["state"] == "RAY_AUTH_MODE=token ray job status raysubmit_1"


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        ([], ["--tracking-uri", "https://anna:geheim@mlflow.example.org"]),
        (["tracking.uri=https://anna:geheim@mlflow.example.org"], []),
        ([], ["--storage", "s3://anna:geheim@bucket/prefix?secret_key=geheim"]),
    ],
)
def test_a_password_is_refused_since_ray_shows_the_command_line_of_a_job(
    tmp_path, monkeypatch, overrides, options
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NlgraftError, match="set it in the environment in which") as raised:
        submit_run("toy.yaml", overrides, "http://127.0.0.1:1", options)
    assert "MLFLOW_TRACKING_PASSWORD" in str(raised.value)
    assert "geheim" not in str(raised.value)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory of somebody's, with everything that gets into one."""
    names = [
        "study.yaml", "my_system/graph.py", ".env", "deploy/.env.production", ".git/config",
        ".venv/bin/python", "data/train.txt", "mlruns/0/meta.yaml", "mlflow.db", "my_store/artifacts/x",
        "certificate.pem", "my_system/__pycache__/graph.pyc", "ignored/notes.txt", "my_system/local.txt",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("/ignored/\n")
    (tmp_path / "my_system" / ".gitignore").write_text("local.txt\n")
    (tmp_path / "weights.bin").write_bytes(bytes(10_000_001))
    (tmp_path / "link").symlink_to("/etc/hostname")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else it stays set, for all tests of this process
    return tmp_path


class Server:
    """Stands for the job server; keeps what it is sent."""

    sent: dict[str, str]

    def __init__(self, address):
        pass

    def submit_job(self, *, entrypoint, runtime_env):
        place = Path(runtime_env["working_dir"])
        files = [path for path in place.rglob("*") if path.is_file()]
        Server.sent = {path.relative_to(place).as_posix(): path.read_text() for path in files}
        return "raysubmit_1"


def test_a_job_gets_the_code_and_no_secret_no_data_and_no_results(project, monkeypatch):
    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", Server)
    told = []
    assert submit_run("study.yaml", [], None, (), told.append, "my_store") == "raysubmit_1"
    assert {*Server.sent} == {"study.yaml", "my_system/graph.py", ".gitignore", "my_system/.gitignore"}
    assert Server.sent["my_system/graph.py"] == "my_system/graph.py"
    assert told[0].startswith("sending 4 files, 0.0 MB: ")
    assert "not sent: .env (left out)" in told[1]
    everything = " ".join(JobPackage.collect(project).left_out)
    for name in (".git/", "data/", "mlruns/", "mlflow.db", "weights.bin", "link", "deploy/.env.production"):
        assert name in everything


def test_what_is_left_out_by_default_can_be_sent_by_name(project):
    package = JobPackage.collect(project, ["!/data/", "!/weights.bin", "/my_store/"])
    assert {"data/train.txt", "weights.bin"} <= {*package.files}
    assert not {".env", "ignored/notes.txt", "my_store/artifacts/x"} & {*package.files}


def test_more_than_ray_takes_is_refused_with_the_largest_parts(project, monkeypatch):
    monkeypatch.setattr(job_package, "MAX_BYTES", 30)
    with pytest.raises(NlgraftError, match=r"Ray takes 0\.0 MB; the largest parts are my_.*excludes"):
        submit_run("study.yaml", [], None)


def test_a_study_that_would_not_be_sent_is_refused(project):
    (project / "data" / "study.yaml").write_text("")
    with pytest.raises(NlgraftError, match=r"excludes: \['!/data/study.yaml'\]"):
        submit_run("data/study.yaml", [], None)


def test_the_shipped_environment_keeps_secrets_and_data_from_plain_ray_job_submit():
    ours = {pattern.strip("/") for pattern in LEFT_OUT}
    excludes = {pattern.strip("/") for pattern in runtime_env(ROOT)["excludes"]}
    assert excludes <= ours
    assert {".env", ".env.*", "data", "nlgraft_store", "mlruns", "*.db", ".git", ".venv"} <= excludes
