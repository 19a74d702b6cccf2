"""Studies on two hosts with addresses, processes and disks of their own, and a store in S3 between them."""

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts import ROOT, Host, join, joined_hosts
from tests.integration.test_worker_groups import document_of
from tests.processes import patient, wait_until
from tests.small_studies import GAINS

BIN = Path(sys.executable).parent
CREATE_BUCKET = (
    "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1')"
    ".create_bucket(Bucket='bucket')"
)
COUNT_HOSTS = (
    "import ray, sys; ray.init(sys.argv[1], log_to_driver=False);"
    " print(sum(node['Alive'] for node in ray.nodes()))"
)
LIST_BUCKET = (
    "import boto3, sys; found = boto3.resource('s3', endpoint_url=sys.argv[1], region_name='us-east-1')"
    ".Bucket('bucket').objects.filter(Prefix=sys.argv[2]); print(*(one.key for one in found), sep='\\n')"
)


class Cluster:
    """A Ray cluster with head and S3 server on the first host; each host has two CPUs and claims a GPU."""

    def __init__(self, head, worker):
        self.head, self.worker = head, worker
        self._s3 = f"http://{head.address}:9000"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_A")},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(
                map(str, [ROOT / "platform", ROOT, ROOT / "tests/integration/toy"])
            ),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "NLGRAFT_CACHE": "/tmp/cache",
            "HOME": "/tmp",
        }
        server = self._start(head, BIN / "moto_server", f"--host={head.address}", "--port=9000")
        head.await_port(9000, server, patient(60))
        subprocess.run(self._python(CREATE_BUCKET), check=True, env=self.environment)
        self._start_ray(head, "--head", "--port=6379", "--include-dashboard=false")
        self._await_hosts(1)
        self._join(worker)
        self._await_hosts(2)

    def replace_worker(self, *, is_awaited=True):
        """Take the second host away, like one without power, and put another one of its name there."""
        self.worker.end()
        replacement = Host(self.worker.name)
        join(self.head, replacement)
        self._join(replacement)
        if is_awaited:
            self._await_hosts(2)

    def _join(self, worker):
        self.worker = worker
        self._start_ray(worker, f"--address={self.head.address}:6379")

    def _start_ray(self, host, *options):
        """Start it as often as it ends: Ray gives its own processes 30 s, few on a busy machine."""
        shape = ["--num-cpus=2", "--num-gpus=1", "--object-store-memory=200000000"]
        command = [BIN / "ray", "start", "--block", f"--node-ip-address={host.address}", *shape, *options]
        self._start(host, "sh", "-c", 'while :; do "$@"; sleep 1; done', "sh", *command)

    def _await_hosts(self, num_hosts):
        # With a limit, since to join a head that has died takes for ever.
        limited = [f"{patient(60):.0f}", sys.executable, "-c", COUNT_HOSTS, f"{self.head.address}:6379"]
        count, end_s = self.head.command("timeout", *limited), time.monotonic() + patient(180)
        while True:
            counted = subprocess.run(count, capture_output=True, text=True, env=self.environment, check=False)
            if counted.stdout.split()[-1:] == [str(num_hosts)]:
                return
            assert time.monotonic() < end_s, counted.stdout + counted.stderr
            time.sleep(1)

    def _start(self, host, *command, **options):
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return host.start(*command, env=self.environment, **(silent | options))

    def _python(self, code, *arguments):
        return self.head.command(sys.executable, "-c", code, self._s3, *arguments)

    def keys(self, prefix):
        """Objects of the store of one run."""
        listing = self._python(LIST_BUCKET, f"{prefix}/")
        shown = subprocess.run(listing, check=True, capture_output=True, text=True, env=self.environment)
        return shown.stdout.split()

    def run(self, document, store):
        """Start `nlgraft run` on the head, as a user does there."""
        self.write(document, store)
        return self._nlgraft("run", store, "--address", f"{self.head.address}:6379")

    def write(self, document, store):
        """Write a study with a store of its own on the head."""
        options = f"endpoint_override={self.head.address}:9000&scheme=http&region=us-east-1"
        document = {**document, "storage": {"path": f"s3://bucket/{store}?{options}"}}
        write = ["sh", "-c", f"cat > /tmp/{store}.yaml"]
        subprocess.run(self.head.command(*write), input=json.dumps(document), text=True, check=True)

    def verify(self, store, tracking_uri=None):
        """Check that nothing of a run is lost, there twice or damaged."""
        verified = self._nlgraft("verify", store, tracking_uri=tracking_uri)
        out, err = verified.communicate(timeout=patient(120))
        assert verified.returncode == 0, out + err

    def words(self, command, store, tracking_uri=None):
        """Words of a command about a study, in Python on the head."""
        tracked = tracking_uri or f"sqlite:////tmp/{store}.db"
        words = ["-m", "nlgraft", command, f"/tmp/{store}.yaml", "--json", "--tracking-uri", tracked]
        return [sys.executable, *words]

    def _nlgraft(self, command, store, *options, tracking_uri=None):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self._start(self.head, *self.words(command, store, tracking_uri), *options, **pipes)

    def first_steps(self, host, name):
        """Steps with which trainings began on one host, from the toy's log on its disk."""
        read = host.command("cat", f"/tmp/{name}")
        shown = subprocess.run(read, capture_output=True, text=True, check=False)
        lines = [line.split() for line in shown.stdout.splitlines()]
        return [int(line[-1]) for line in lines if line[0] == "training"]


def finish(run, timeout_s=None):
    """Result and messages of a run."""
    out, err = run.communicate(timeout=timeout_s or patient(400))
    assert run.returncode == 0, err
    return json.loads(out), err


def toy(name, **base):
    return {
        "name": name,
        "system": "sweep_toy",
        "base": {"log": f"/tmp/{name}", **base},
        "factors": {"gain": GAINS},
        "objective": {"metric": "dev/score", "direction": "maximize"},
    }


def training(workers):
    """A study of a real training, which gives each worker all CPUs of a host."""
    resources = {"workers": workers, "cpus_per_worker": 2}
    return document_of("embedding_transfer") | {"name": "spread", "resources": resources}


@pytest.fixture(scope="module")
def cluster():
    with joined_hosts() as (head, worker):
        cluster = Cluster(head, worker)
        yield cluster
        cluster.worker.end()  # another one than that which joined first


@pytest.mark.slow
def test_four_trials_of_half_a_gpu_run_at_once_on_two_hosts_of_one(cluster):
    study = {**toy("halves", pause_s=3), "seeds": [1, 2], "resources": {"gpus_per_worker": 0.5}}
    result, messages = finish(cluster.run(study, "halves"))
    assert "4 at once" in messages
    assert result["trials"] == {"run": 4, "reused": 0, "failed": 0}
    begun = [cluster.first_steps(host, "halves") for host in (cluster.head, cluster.worker)]
    assert begun == [[1, 1], [1, 1]]


@pytest.mark.slow
def test_a_host_whose_disk_is_full_is_left_out_and_the_other_computes_all(cluster):
    fill = "mkdir -p /tmp/cache; mount -t tmpfs -o size=16k none /tmp/cache; yes > /tmp/cache/x; true"
    subprocess.run(cluster.worker.command("sh", "-c", fill), check=True, stderr=subprocess.DEVNULL)
    try:
        result, messages = finish(cluster.run({**toy("full", pause_s=1), "seeds": [1, 2, 3]}, "full"))
    finally:
        subprocess.run(cluster.worker.command("umount", "/tmp/cache"), check=True)
    assert result["trials"] == {"run": 6, "reused": 0, "failed": 0}
    assert f"host {cluster.worker.name} cannot use /tmp/cache" in messages
    assert "left out" in messages
    assert len(cluster.first_steps(cluster.head, "full")) == 6
    cluster.verify("full")


@pytest.mark.slow
def test_one_trial_on_two_hosts_gives_the_metrics_of_one(cluster):
    """Each worker takes all CPUs of a host, so the two can only be on two.

    Both see the same global batches, and gradients are sums over them: only the order of floats differs.
    """
    losses = []
    for workers in (1, 2):
        result, _ = finish(cluster.run(training(workers), f"spread{workers}"))
        losses.append(result["cells"][0]["metrics"]["dev/loss"]["mean"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.slow
def test_a_trial_survives_the_loss_of_one_of_its_hosts(cluster):
    """The host vanishes like one without power: no connection is closed. Another one takes its place."""
    studies = [toy(name, steps=30, pause_s=pause_s) for name, pause_s in (("lost", 1), ("undisturbed", 0))]
    for study in studies:
        study |= {"seeds": [1], "resources": {"workers": 2, "cpus_per_worker": 2}}
        del study["factors"]
    run = cluster.run(studies[0], "lost")
    wait_until(lambda: "state.json" in " ".join(cluster.keys("lost")), 200, 1.0, run)
    before = cluster.first_steps(cluster.head, "lost") + cluster.first_steps(cluster.worker, "lost")
    cluster.replace_worker()
    result, _ = finish(run)
    cluster.verify("lost")
    after = cluster.first_steps(cluster.head, "lost") + cluster.first_steps(cluster.worker, "lost")
    assert result["trials"] == {"run": 1, "reused": 0, "failed": 0}
    assert before == [1]
    [resumed_at] = [step for step in after if step not in before]
    assert resumed_at > 1, "it went on from its last checkpoint"
    undisturbed, _ = finish(cluster.run(studies[1], "undisturbed"))
    assert result["cells"][0]["metrics"] == undisturbed["cells"][0]["metrics"]
