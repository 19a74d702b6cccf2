"""The watch over Ray's processes, with plain sockets in their place."""

import socket
import time

import pytest

from nlgraft.basics.errors import ClusterError
from nlgraft.execution import cluster_watch
from nlgraft.execution.cluster_watch import ClusterWatch
from nlgraft.execution.interruption import Interrupted, raising_interrupted


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(cluster_watch, "_PAUSE_S", 0.01)


@pytest.fixture
def server():
    return socket.create_server(("127.0.0.1", 0))


def test_a_process_that_no_longer_answers_interrupts_the_driver(server):
    watch = ClusterWatch({"raylet": server.getsockname()}, None)
    watch.check(is_suspect=True)
    server.close()
    with pytest.raises(Interrupted), raising_interrupted(), watch:
        time.sleep(30)
    with pytest.raises(ClusterError, match=r"lost Ray on this machine: its raylet .* Run the same command"):
        watch.check()


def test_a_suspect_cluster_is_looked_at_at_once(server):
    watch = ClusterWatch({"gcs": server.getsockname()}, "10.0.0.1:6379")
    watch.check(is_suspect=True)
    server.close()
    watch.check()
    with pytest.raises(ClusterError, match=r"the Ray cluster at 10\.0\.0\.1:6379: its gcs .*`ray status"):
        watch.check(is_suspect=True)


def test_a_process_that_answers_again_is_not_lost(server, monkeypatch):
    answers = iter([False, True])
    monkeypatch.setattr(cluster_watch, "answers", lambda place: next(answers))
    ClusterWatch({"gcs": server.getsockname()}, None).check(is_suspect=True)
    server.close()
