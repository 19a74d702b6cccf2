"""deploy/slurm.sh with a `srun` of ours, on hosts that are namespaces of this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.hosts import ROOT, joined_hosts
from tests.processes import patient, wait_until

BIN = Path(sys.executable).parent

# What the script needs of Slurm: the options that it gives, a node's number, the worst status.
SRUN = f"""#!{sys.executable}
import json, os, subprocess, sys
from pathlib import Path
words = sys.argv[1:]
options = {{}}
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    options[name] = value
nodes = json.loads(os.environ["FAKE_NODES"])
chosen = [options["--nodelist"]] if "--nodelist" in options else list(nodes)
assert set(options) <= {{"--nodes", "--ntasks", "--nodelist", "--kill-on-bad-exit", "--overlap"}}, options
tasks = [
    subprocess.Popen([*nodes[name], *words], env={{**os.environ, "SLURM_NODEID": str(number)}})
    for number, name in enumerate(chosen)
]
worst = 0
while tasks:
    for task in [task for task in tasks if task.poll() is not None]:
        worst = max(worst, abs(task.returncode))
        tasks.remove(task)
    for task in tasks:
        if worst and "--kill-on-bad-exit" in options:
            task.kill()
        try:
            task.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
sys.exit(worst)
"""
SCONTROL = f"""#!{sys.executable}
import sys
from pathlib import Path
if sys.argv[1] == "requeue":
    Path(__file__).with_name("requeued").write_text(sys.argv[2])
else:
    assert sys.argv[1:3] == ["show", "hostnames"]
    print(sys.argv[3].replace(",", "\\n"))
"""
STUDY = """
name: {name}
system: tests.integration.toy.sweep_toy
base: {{steps: {steps}, pause_s: {pause_s}, log: {log}}}
factors: {{gain: {{target: gain, levels: [0.0, 1.0], baseline: 0.0}}}}
objective: {{metric: dev/score, direction: maximize}}
seeds: [1]
resources: {{workers: {workers}}}
"""
TERMINATE = """
import contextlib, os, signal, sys
from pathlib import Path
for path in Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):
        if f"SLURM_JOB_ID={sys.argv[1]}" in (path / "environ").read_text(errors="replace").split(chr(0)):
            os.kill(int(path.name), signal.SIGTERM)
"""


@pytest.fixture
def hosts(tmp_path):
    with joined_hosts([tmp_path]) as both:
        yield both


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def submit(
    job_id,
    nodes,
    tmp_path,
    *,
    workers=1,
    steps=3,
    pause_s=0.0,
    cwd=ROOT,
):
    """Do what `sbatch` does, for a study of two trials of a directory of its own."""
    directory = tmp_path / str(job_id)
    directory.mkdir(exist_ok=True)  # it is there if the job was requeued
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        write_program(directory / name, text)
    study = {"name": f"job-{job_id}", "steps": steps, "pause_s": pause_s, "log": directory / "log"}
    (directory / "study.yaml").write_text(STUDY.format(**study, workers=workers))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_A")},
        "PATH": f"{directory}:{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
        "FAKE_NODES": json.dumps({host.name: host.command() for host in nodes}),
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOB_NODELIST": ",".join(host.name for host in nodes),
        "SLURM_JOB_NUM_NODES": str(len(nodes)),
        "SLURM_CPUS_PER_TASK": "1",
    }
    return subprocess.Popen(
        ["bash", ROOT / "deploy" / "slurm.sh", directory / "study.yaml", f"storage.path={directory}/store"],
        cwd=cwd,
        env=environment,
        stdout=(directory / "output").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(job, output, timeout_s):
    try:
        status = job.wait(timeout_s)
    except subprocess.TimeoutExpired:
        job.kill()
        raise AssertionError(output.read_text()) from None
    assert status == 0, output.read_text()
    return output.read_text()


RAY = """#!/bin/bash
while [ "$1" != -- ]; do shift; done
shift && exec "$@"
"""
DRIVER = """#!/bin/bash
trap 'echo ended in order; exit "$(cat {directory}/status)"' TERM
echo began "$@"
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("status", [143, 0])
def test_a_driver_ends_in_order_before_its_job_and_is_requeued_unless_it_had_finished(tmp_path, status):
    """Without Ray: the signal of Slurm goes to the script alone, and reaches the driver alone."""
    isolated = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]
    if not shutil.which("unshare") or subprocess.run(isolated, check=False).returncode:
        pytest.skip("the script needs user namespaces")
    job_id = os.getpid()  # its directory and ports are this test's alone
    directory = tmp_path / str(job_id)
    directory.mkdir()
    (directory / "status").write_text(str(status))
    write_program(directory / "ray", RAY)
    write_program(directory / "python", DRIVER.format(directory=directory))
    job = submit(job_id, [SimpleNamespace(name="here", command=list)], tmp_path, cwd=directory)
    study = [str(directory / "study.yaml"), f"storage.path={directory}/store"]
    begun = f"began -m nlgraft run --wait-timeout 48h {' '.join(study)}"
    wait_until(lambda: begun in (directory / "output").read_text().splitlines(), 30, process=job)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(patient(30)) == (1 if status else 0)
    assert (directory / "output").read_text().splitlines()[-1] == "ended in order"
    assert (directory / "requeued").exists() == (status != 0)
    assert not Path(f"/tmp/nlgraft-{job_id}").exists()


@pytest.mark.slow
def test_a_study_whose_trials_take_a_worker_of_each_node(hosts, tmp_path):
    output = finish(submit(7, list(hosts), tmp_path, workers=2), tmp_path / "7" / "output", 800)
    assert "2 run, 0 reused" in output
    assert len(list((tmp_path / "7" / "store").rglob("score.json"))) == 2


@pytest.mark.slow
def test_two_jobs_that_share_a_host_both_end(hosts, tmp_path):
    """The first ends, and with it its Ray, while the second computes."""
    jobs = {
        8: submit(8, [hosts[0]], tmp_path),
        10009: submit(10009, [hosts[0]], tmp_path, steps=20, pause_s=3),
    }
    for job_id, job in jobs.items():
        finish(job, tmp_path / str(job_id) / "output", 800)
        assert len(list((tmp_path / str(job_id) / "store").rglob("score.json"))) == 2
    remaining_files = subprocess.run(
        hosts[0].command("ls", "/tmp"), capture_output=True, text=True, check=True
    ).stdout
    assert "nlgraft-" not in remaining_files


def states(directory):
    """How the trials of a job have ended so far."""
    return [json.loads(path.read_text())["state"] for path in directory.glob("store/records/trials/*.json")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_told", [True, False])
def test_a_preempted_job_goes_on_when_it_is_requeued(hosts, tmp_path, is_told):
    """Slurm tells the script alone, or where it is not set up so, sends SIGTERM to all of the job's steps."""
    host, directory = hosts[0], tmp_path / "11"
    job = submit(11, [host], tmp_path, steps=20, pause_s=1)
    wait_until(lambda: list(directory.glob("store/checkpoints/**/state.json")), 200, process=job)
    if is_told:
        job.send_signal(signal.SIGUSR1)
    else:
        subprocess.run(host.command(sys.executable, "-c", TERMINATE, "11"), check=True)
    assert job.wait(patient(120)) != 0
    if is_told:
        output = (directory / "output").read_text()
        assert "run the same command again to resume" in output
        assert set(states(directory)) == {"killed"}, output
        assert (directory / "requeued").read_text() == "11"
    else:
        assert "finished" not in states(directory)
    output = finish(submit(11, [host], tmp_path, steps=20, pause_s=1), directory / "output", 800)
    assert "2 run, 0 reused, 0 failed" in output
    lines = [line.split() for line in (directory / "log").read_text().splitlines()]
    begun = [(line[1], int(line[-1])) for line in lines if line[0] == "training"]
    [preempted, resumed] = [step for stage, step in begun if stage == begun[0][0]]
    assert preempted == 1
    assert resumed > 1, "it went on from its last checkpoint"
    assert len(begun) == 3
    verify = [sys.executable, "-m", "nlgraft", "verify", directory / "study.yaml"]
    subprocess.run([*verify, f"storage.path={directory}/store"], check=True, cwd=ROOT)
