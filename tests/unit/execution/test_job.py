"""What `nlgraft submit` says besides the job id."""

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
import ray.job_submission
from ray.job_submission import JobStatus

from nlgraft.basics.errors import DataError, NlgraftError, StudyLockedError
from nlgraft.commands.jobs import next_commands
from nlgraft.execution import job
from nlgraft.execution.job import (
    LEFT_OUT,
    SECRETS,
    JobPackage,
    JobRequest,
    JobServer,
    job_name,
    runtime_env,
    submit_run,
)
from nlgraft.study.public import Study

ROOT = Path(__file__).parents[3]


def request(study_file="study.yaml", overrides=(), options=(), variables=(), store=None):
    document = {
        "name": "demo",
        "system": "tests.integration.toy.sweep_toy",
        "objective": {"metric": "dev/score", "direction": "maximize"},
        "seeds": [1],
        "storage": {"path": store or str(Path.cwd() / "my_store")},
    }
    return JobRequest(Study.from_dict(document), study_file, overrides, options, variables)


def submit(*arguments, say=print, **options):
    return submit_run(request(*arguments, **options), None, say)


def write_named(place, names):
    """Write files that hold their names."""
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)


def git(place, *arguments):
    subprocess.run(["git", "-C", place, *arguments], check=True)


def test_the_next_commands_name_the_study_its_overrides_and_the_address():
    assert list(next_commands(["a study.yaml", "seeds=[1, 2]"], "http://head:8265").values()) == [
        "nlgraft status 'a study.yaml' 'seeds=[1, 2]' --address http://head:8265",
        "nlgraft logs --follow 'a study.yaml' 'seeds=[1, 2]' --address http://head:8265",
        "nlgraft stop 'a study.yaml' 'seeds=[1, 2]' --address http://head:8265",
    ]


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
        submit_run(request("toy.yaml", overrides, options), "http://127.0.0.1:1", print)
    assert "MLFLOW_TRACKING_PASSWORD" in str(raised.value)
    assert "geheim" not in str(raised.value)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory of somebody's, with everything that gets into one."""
    names = [
        "study.yaml", "my_system/graph.py", ".env", "deploy/.env.production", ".venv/bin/python",
        "data/train.txt", "mlruns/0/meta.yaml", "mlflow.db", "my_store/artifacts/x",
        "certificate.pem", "my_system/__pycache__/graph.pyc", "ignored/notes.txt", "my_system/local.txt",
    ]  # fmt: skip
    write_named(tmp_path, names)
    (tmp_path / ".gitignore").write_text("/ignored/\n")
    (tmp_path / "my_system" / ".gitignore").write_text("local.txt\n")
    (tmp_path / "weights.bin").write_bytes(bytes(10_000_001))
    (tmp_path / "link").symlink_to("/etc/hostname")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else it stays set, for all tests of this process
    return tmp_path


class Server:
    """Stands for the job server; keeps what it is sent."""

    def __init__(self, address=None):
        self.jobs = []
        self.sent = {}
        self.variables = {}

    def list_jobs(self):
        return self.jobs

    def submit_job(self, *, entrypoint, submission_id, runtime_env):
        if submission_id in [job.submission_id for job in self.jobs]:
            raise RuntimeError("already exists")
        place = Path(runtime_env["working_dir"])
        files = [path for path in place.rglob("*") if path.is_file()]
        self.sent = {path.relative_to(place).as_posix(): path.read_text() for path in files}
        self.variables = runtime_env["env_vars"]
        self.add(submission_id, entrypoint)

    def add(self, submission_id, entrypoint, state="RUNNING"):
        self.jobs.append(
            SimpleNamespace(
                submission_id=submission_id,
                status=JobStatus(state),
                entrypoint=entrypoint,
                driver_exit_code=None,
                message=None,
            )
        )


@pytest.fixture
def server(monkeypatch):
    fake_server = Server()
    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", lambda address: fake_server)
    return fake_server


def test_a_job_gets_the_code_and_no_secret_no_data_and_no_results(project, server):
    messages = []
    write_named(project, SECRET_NAMES)
    assert submit(say=messages.append).job_id.startswith("nlgraft-demo-")
    assert {*server.sent} == {"study.yaml", "my_system/graph.py"}, "with .gitignore Ray would leave out more"
    assert server.sent["my_system/graph.py"] == "my_system/graph.py"
    assert messages[0].startswith("sending 2 files, 0.0 MB: ")
    assert "not sent: " in messages[1]
    everything = " ".join(JobPackage.collect(project).left_out)
    for name in (".env", "data/", "mlruns/", "mlflow.db", "weights.bin", "link", "deploy/.env.production"):
        assert name in everything


SECRET_NAMES = (
    ".git-credentials", ".pypirc", ".pgpass", ".npmrc", ".docker/config.json", ".kube/config", "id_ecdsa",
    ".config/gcloud/access_tokens.db", ".azure/azureProfile.json", ".gnupg/secring", ".huggingface/token",
    "my.p12", "my.jks", "credentials.json", "prod.env", "netrc", "ID_RSA", "server.PEM", "secrets.yaml",
)  # fmt: skip


def test_of_a_repository_a_job_gets_what_git_tracks_and_the_study_names(project, server):
    """Also of the study's own system, secrets stay, tracked or not."""
    inside = [f"tests/{secret}" for secret in SECRET_NAMES]
    write_named(project, [*SECRET_NAMES, "tests/new/part.py", *inside, "tracked.py"])
    (project / ".gitignore").write_text("/tests/\n")
    git(project, "init", "-q")
    git(project, "add", "-f", "tracked.py", *SECRET_NAMES)
    messages = []
    submit(say=messages.append)
    assert {*server.sent} == {"study.yaml", "tests/new/part.py", "tracked.py"}
    assert "my_system/ (not in git)" in messages[1] or "more" in messages[1]
    (project / "key").symlink_to("netrc")
    left_out = JobPackage.collect(project, needs=["key"]).left_out
    assert {".git/", ".gitignore", "my_system/", "ignored/"} <= {*left_out}
    assert left_out["key"] == "a link to what is left out"


def test_a_word_of_a_study_is_no_path(project, server, monkeypatch):
    """Only files, its system and its metrics are; links that lead nowhere or to folders stay."""
    git(project, "init", "-q")
    for name in ("demo", "maximize", "dev", "conlang", "transfer", "avg_eg", "examples"):
        (project / name).mkdir()
        (project / name / "private.txt").touch()
    links = {"circle": "circle", "nowhere": "missing", "folder": "examples"}
    for name, target in links.items():
        (project / "my_system" / name).symlink_to(target)
    (project / "up.en").touch()
    study = Study.from_yaml(ROOT / "search_spaces/embedding_transfer/demo.yaml").to_dict()
    files = {"corpus": "files", "train": {"sources": "up.en", "target": "my_system"}}
    study["data"]["upstream"] = files | {"dev": files["train"], "test": files["train"]}
    study["storage"] = {"path": str(project / "my_store")}
    submit_run(replace(request(), study=Study.from_dict(study)), None, print)
    assert {*server.sent} == {
        "study.yaml",
        "up.en",
        "my_system/graph.py",
        "my_system/local.txt",
    }


def test_of_a_repository_without_tracked_files_only_what_is_named_is_sent(project, server):
    git(project, "init", "-q")
    submit()
    assert {*server.sent} == {"study.yaml"}


@pytest.mark.parametrize("has_git", [True, False])
def test_a_repository_that_git_does_not_list_is_not_sent(project, server, monkeypatch, has_git):
    (project / ".git").mkdir()
    (project / ".git" / "config").touch()
    if not has_git:
        monkeypatch.setenv("PATH", str(project))
    with pytest.raises(DataError, match="git cannot list its files"):
        submit()
    assert server.sent == {}


def test_a_store_in_the_job_s_own_copy_is_refused_since_ray_removes_it(project, server):
    with pytest.raises(DataError, match=r"storage\.path nlgraft_store: is relative.* Give --storage a place"):
        submit(store="nlgraft_store")
    assert server.jobs == []
    submit(store="s3://bucket/nlgraft")
    assert len(server.jobs) == 1


def test_a_store_in_the_home_directory_is_no_relative_one(project, server, monkeypatch):
    """It is left out of what is sent, too, where it lies below the working directory."""
    monkeypatch.setenv("HOME", str(project))
    submit(store="~/my_store")
    assert "study.yaml" in server.sent
    assert not [name for name in server.sent if name.startswith("my_store")]


def test_variables_are_sent_by_name_and_a_missing_one_is_named(project, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "anna")
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(NlgraftError, match="--env NOT_SET: not set in this environment"):
        submit(variables=["MLFLOW_TRACKING_USERNAME", "NOT_SET"])
    assert server.jobs == []
    messages = []
    submit(variables=["MLFLOW_TRACKING_USERNAME"], say=messages.append)
    assert server.variables == {"PYTHONPATH": "platform:.", "MLFLOW_TRACKING_USERNAME": "anna"}
    assert "the job gets MLFLOW_TRACKING_USERNAME: who may list the cluster's jobs can read them" in messages


def test_a_study_has_one_job_at_a_time_and_its_next_one_the_next_number(project, server):
    messages = []
    first = submit(say=messages.append)
    name = job_name(request().study)
    assert first.job_id == f"{name}-1"
    assert submit(say=messages.append).job_id == first.job_id
    assert messages[-1] == f"{name}-1 runs this study by the same command already; nothing was submitted"
    with pytest.raises(StudyLockedError, match=f"job {name}-1 runs this study already, by another command"):
        submit(options=["--storage", "elsewhere"])
    server.jobs[0].status = JobStatus("FAILED")
    assert submit().job_id == f"{name}-2"
    other = replace(request(), study=request().study.model_copy(update={"name": "other"}))
    assert submit_run(other, None, print).job_id == f"{job_name(other.study)}-1"


def test_two_who_submit_at_the_same_moment_share_one_job(project, server, monkeypatch):
    """The other one's job appears between the look at the list and the submission."""
    name = job_name(request().study)
    listed = iter([[]])
    monkeypatch.setattr(server, "list_jobs", lambda: next(listed, server.jobs))
    server.add(f"{name}-1", "python -m nlgraft run study.yaml")
    messages = []
    assert submit(say=messages.append).job_id == f"{name}-1"
    assert "nothing was submitted" in messages[-1]


def test_output_goes_on_where_the_connection_broke(server, monkeypatch):
    """A head behind a proxy breaks it by errors of the web client, which are no errors of the system."""
    server.add("job-1", "python -m nlgraft run study.yaml")
    errors = iter([aiohttp.ServerDisconnectedError(), aiohttp.ClientPayloadError("cut off"), None])

    async def tail(job_id):
        error = next(errors)
        yield "first\nsec"
        if error is None:
            yield "ond\n"
            server.jobs[0].status = JobStatus("SUCCEEDED")
        else:
            raise error

    monkeypatch.setattr(server, "tail_job_logs", tail, raising=False)
    monkeypatch.setattr(server, "get_job_info", lambda job_id: server.jobs[0], raising=False)
    monkeypatch.setattr("nlgraft.execution.job._POLL_S", 0.0)
    chunks = []
    jobs = JobServer(None)
    assert jobs.follow(jobs.get("job-1"), chunks.append).state == "SUCCEEDED"
    assert "".join(chunks) == "first\nsecond\n"


def test_what_is_left_out_by_default_can_be_sent_by_name(project):
    package = JobPackage.collect(project, ["!/data/", "!/weights.bin", "/my_store/"])
    assert {"data/train.txt", "weights.bin"} <= {*package.files}
    assert not {".env", "ignored/notes.txt", "my_store/artifacts/x"} & {*package.files}


def test_more_than_ray_takes_is_refused_with_the_largest_parts(project, monkeypatch):
    monkeypatch.setattr(job, "MAX_BYTES", 20)
    with pytest.raises(NlgraftError, match=r"Ray takes 0\.0 MB; the largest parts are my_.*excludes"):
        submit()


def test_a_study_that_would_not_be_sent_is_refused(project):
    (project / "data" / "study.yaml").write_text("")
    with pytest.raises(NlgraftError, match=r"excludes: \['!/data/study.yaml'\]"):
        submit("data/study.yaml")


def test_the_shipped_environment_keeps_secrets_and_data_from_plain_ray_job_submit():
    left_out = {pattern.strip("/") for pattern in LEFT_OUT}
    excludes = {pattern.strip("/") for pattern in runtime_env(ROOT)["excludes"]}
    assert excludes <= left_out
    assert {pattern.strip("/") for pattern in SECRETS} <= excludes
    assert {"data", "nlgraft_store", "mlruns", "*.db", ".git", ".venv"} <= excludes
