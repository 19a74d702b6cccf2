"""`ray job submit`, plain and through `nlgraft submit`, against a head on this machine."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.processes import patient, wait_until
from tests.servers import first_answer, free_port

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

STUDY = """
name: toy-job
system: tests.integration.toy.sweep_toy
factors: {gain: {target: gain, levels: [0.0, 1.0], baseline: 0.0}}
objective: {metric: dev/score, direction: maximize}
seeds: [1]
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment of a user of a cluster with token authentication, with a token of this test's own."""
    names = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
    token = tmp_path_factory.mktemp("token") / "auth_token"
    token.write_text(secrets.token_hex(32))
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    return {**names, **settings, "PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def job_server(environment):
    """A head in the foreground of a process of ours, so that ending it ends nothing else."""
    directory = tempfile.mkdtemp(prefix="nlg-head-")
    dashboard = free_port()
    head = subprocess.Popen(
        [
            BIN / "ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=2",
            f"--port={free_port()}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
            f"--temp-dir={directory}",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{dashboard}"
    try:
        first_answer(f"{address}/api/version", head)
        yield address
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(timeout=60)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def nlgraft(job_server, environment, tmp_path):
    """A command of the submitter about the study, whose training waits while a file exists."""
    study_file = ROOT / "toy-held-job.yaml"
    study_file.write_text(f"{STUDY}\nbase: {{hold: {tmp_path / 'hold'}}}\n")

    def call(command, *options):
        return subprocess.run(
            [BIN / "python", "-m", "nlgraft", command, study_file.name, "--address", job_server, *options],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}", "OF_THE_JOB": "a value"},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    yield call
    study_file.unlink()


@pytest.mark.slow
def test_a_study_is_submitted_joined_stopped_and_resumed_from_the_submitter_s_machine(nlgraft, tmp_path):
    (tmp_path / "hold").touch()
    places = ["--storage", str(tmp_path / "store"), "--tracking-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]
    submitted = nlgraft("submit", *places)
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    assert re.fullmatch(r"nlgraft-toy-job-[0-9a-f]{10}-1", job_id)
    messages = [line.partition(": ")[2] for line in submitted.stderr.splitlines()]
    following = [line.split()[1] for line in messages if line.startswith("nlgraft ")]
    assert following == ["status", "logs", "stop"]

    again = nlgraft("submit", *places)
    assert (again.returncode, again.stdout.strip()) == (0, job_id), again.stderr
    assert "nothing was submitted" in again.stderr
    refused = nlgraft("submit", "--storage", str(tmp_path / "elsewhere"))
    assert refused.returncode == 4
    assert f"job {job_id} runs this study already, by another command" in refused.stderr

    wait_until(lambda: "2 trials planned" in nlgraft("logs").stdout, 180)
    shown = nlgraft("status", "--storage", str(tmp_path / "store"), "--json")
    assert json.loads(shown.stdout)["job"]["state"] == "RUNNING"
    stopped = nlgraft("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert f"{job_id}: STOPPED" in stopped.stderr
    assert "has ended already: STOPPED" in nlgraft("stop").stderr

    (tmp_path / "hold").unlink()
    resumed = nlgraft("submit", *places, "--wait", "--env", "OF_THE_JOB")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.strip() == job_id.removesuffix("1") + "2"
    assert "the job gets OF_THE_JOB" in resumed.stderr
    assert "2 trials planned" in resumed.stderr
    assert resumed.stderr.rstrip().endswith("SUCCEEDED")


_, _, README = (ROOT / "README.md").read_text("utf-8").partition("\n## On a cluster, and in MLflow\n")
PAGE = (ROOT / "docs" / "cluster.md").read_text("utf-8")
RUN_ELSEWHERE = {
    "ray up cluster.yaml": "contract/test_house.py checks the file; it needs a cloud",
    "sbatch deploy/slurm.sh STUDY.yaml": "integration/test_slurm.py",
}
"""Commands of the two pages that no head on this machine can run."""


def typed(text):
    """Lines of the blocks of a page, in their order."""
    return [line for block in re.findall(r"```\n(.*?)```", text, re.S) for line in block.splitlines()]


class Reader:
    """Types the commands of a page into a shell in a clone, with what a reader puts in place of HEAD."""

    def __init__(self, clone, environment, job_server):
        self._clone, self._address = clone, job_server
        self._environment = {**environment, "PATH": f"{clone / 'bin'}:{environment['PATH']}"}

    def start(self, line, name="last"):
        line = line.replace("http://HEAD:8265", self._address)
        assert "HEAD" not in line
        with (self._clone / f"{name}.out").open("w") as out, (self._clone / f"{name}.err").open("w") as err:
            return subprocess.Popen(
                ["bash", "-c", line], cwd=self._clone, env=self._environment,
                stdout=out, stderr=err, text=True, start_new_session=True,
            )  # fmt: skip

    def output(self, name="last"):
        return (self._clone / f"{name}.out").read_text() + (self._clone / f"{name}.err").read_text()

    def type(self, line):
        """Run a command to its end and return what it printed."""
        status = self.start(line).wait(patient(300))
        assert status == 0, f"{line}: {self.output()}"
        return self.output()


@pytest.fixture
def clone(tmp_path):
    """What of a clone a job needs, with a study whose store all nodes reach, and `nlgraft` as a command."""
    for folder in ("platform", "tests/integration/toy"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "runtime_env.yaml", tmp_path)
    store = f"storage: {{path: {tmp_path / 'nlgraft_store'}}}"
    small = f"scales: {{small: {{base: {{hold: {tmp_path / 'hold'}}}}}}}"
    (tmp_path / "STUDY.yaml").write_text(f"{STUDY.replace('toy-job', 'toy-reader')}{store}\n{small}\n")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "nlgraft"
    command.write_text(f'#!/bin/sh\nPYTHONPATH=platform:. exec "{sys.executable}" -m nlgraft "$@"\n')
    command.chmod(0o755)
    return tmp_path


@pytest.fixture
def reader(clone, environment, job_server):
    return Reader(clone, environment, job_server)


def test_every_command_of_the_cluster_pages_is_run_by_a_test():
    """Those in blocks are run below; a sentence that names a command with its arguments is listed here."""
    programs = {"nlgraft", "ray", "mlflow", "sbatch"}
    inline = {code for code in re.findall(r"`([^`\n]+)`", README + PAGE) if code.split()[0] in programs}
    assert {code for code in inline if re.search(r"\.\w", code)} == {*RUN_ELSEWHERE}
    assert [line.split()[:2] for line in typed(README)] == [["nlgraft", "submit"], ["mlflow", "ui"]]
    shown = [line.split(" STUDY")[0].split(" --address")[0] for line in typed(PAGE)]
    assert shown == [*(f"nlgraft {name}" for name in ("submit", "logs", "status", "stop")), "ray job submit"]


@pytest.mark.slow
def test_the_commands_of_the_readme_run_a_study_and_show_it(reader):
    submit, ui = typed(README)
    following = re.findall(r": (nlgraft logs .*)", reader.type(submit))
    assert "2 run, 0 reused" in reader.type(following[0])
    port = free_port()
    server = reader.start(f"exec {ui.partition('#')[0]} --port {port}", "ui")
    try:
        first_answer(f"http://127.0.0.1:{port}/health", server)
        query = json.dumps({"max_results": 100}).encode()
        request = Request(
            f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/search",
            query,
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=30) as answer:
            names = [experiment["name"] for experiment in json.load(answer)["experiments"]]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)
    assert [name for name in names if name.startswith("toy-reader@small")] != []


@pytest.mark.slow
def test_the_commands_of_the_cluster_page_run_in_their_order(reader, clone):
    submit, follow, status, stop, ray_submit = typed(PAGE)
    (clone / "hold").touch()  # the study trains until it is stopped
    job_id = reader.type(submit).split()[0]
    logs = reader.start(follow, "logs")
    wait_until(lambda: "2 trials planned" in reader.output("logs"), 180, process=logs)
    assert "RUNNING" in reader.type(status)
    assert f"{job_id}: STOPPED" in reader.type(stop)
    assert logs.wait(patient(60)) == 0, "what follows a job ends with it"
    (clone / "hold").unlink()
    assert "2 run, 0 reused" in reader.type(ray_submit)
