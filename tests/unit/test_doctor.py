"""The checks of ``nlgraft doctor``: each finds the fault that is planted, and nothing where there is none."""

import shutil
import socket
import time
from types import SimpleNamespace

import pytest

from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs import device_trials, doctor
from nlgraft.runs.doctor import check_equal_versions, run_check
from tests.proxies import listening


def always_writes(files, key, *data):
    """As a service does that ignores the condition of a request."""
    files.write(key, data[-1])
    return True


@pytest.mark.parametrize("name", [None, "create", "replace"])
def test_a_store_that_ignores_conditions_is_no_store(name, tmp_path, monkeypatch):
    if name is not None:
        monkeypatch.setattr(LocalFiles, name, always_writes)
    check = doctor.check_store(str(tmp_path / "store"))
    assert check.state == ("ok" if name is None else "wrong")
    assert bool(check.remedy) == (name is not None)
    assert check.figures[f"{name or 'create'}d"] == (1 if name is None else check.figures["rivals"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_store_that_cannot_be_written_is_told_by_name(tmp_path):
    (tmp_path / "store").write_text("a file")
    check = run_check("store", lambda: doctor.check_store(str(tmp_path / "store")))
    assert (check.name, check.state) == ("store", "wrong")
    assert "store" in check.what


@pytest.mark.parametrize(
    ("ahead_s", "state"),
    [(0.0, "ok"), (60.0, "warn"), (-60.0, "warn"), (3600.0, "wrong"), (-3600.0, "wrong")],
)
def test_a_clock_far_off_is_seen(ahead_s, state, tmp_path, monkeypatch):
    true_time = time.time
    monkeypatch.setattr(doctor.time, "time", lambda: true_time() + ahead_s)
    monkeypatch.setattr(ArtifactStore, "now", lambda store: true_time())
    check = doctor.check_clock(str(tmp_path))
    assert check.state == state
    assert check.figures["behind_s"] == pytest.approx(-ahead_s, abs=1.0)
    assert ("before" in check.what) == (ahead_s >= 0)


@pytest.mark.parametrize(("free", "state"), [(50e9, "ok"), (5e9, "warn"), (1e8, "wrong")])
@pytest.mark.parametrize("is_store_full", [True, False])
def test_the_fuller_disk_decides(free, state, is_store_full, tmp_path, monkeypatch):
    def usage(path):
        is_full = (tmp_path in (path, *path.parents)) == is_store_full
        return SimpleNamespace(total=100e9, free=free if is_full else 90e9)

    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: "/")
    monkeypatch.setattr(shutil, "disk_usage", usage)
    check = doctor.check_disk(str(tmp_path / "not" / "there"))
    assert (check.state, check.figures["free_bytes"]) == (state, free)


def test_a_tracking_server_that_is_down_or_refuses_is_told_at_once(tmp_path):
    def check(uri):
        return run_check("tracking", lambda: doctor.check_tracking(uri))

    with listening("") as server:
        server.fault = "200"
        assert check(server.address).state == "ok"
        server.fault = "403"
        refused = check(server.address)
    down = check(server.address.replace("http://", "http://user:secret@"))
    assert (down.state, "secret" in down.what) == ("wrong", False)
    assert (refused.state, "MLFLOW_TRACKING_USERNAME" in refused.remedy) == ("wrong", True)
    assert check(f"sqlite:///{tmp_path}/mlflow.db").state == "ok"
    (tmp_path / "text").write_text("no database")
    assert "no SQLite database" in check(f"sqlite:///{tmp_path}/text").what
    assert check(f"file:{tmp_path}").state == "wrong"
    assert not (tmp_path / "mlflow.db").exists()


def test_a_port_that_is_taken_is_told_with_the_option_that_sets_another(
    monkeypatch,
):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        monkeypatch.setattr(doctor, "_RAY_PORTS", {port: "--dashboard-port"})
        assert doctor.check_ports().state == "ok"
        other.listen()
        check = doctor.check_ports()
    assert (check.state, check.figures) == ("warn", {"taken": [port]})
    assert "--dashboard-port=PORT" in check.remedy


def test_gpus_that_torch_does_not_find_are_wrong_and_a_machine_without_any_is_not(
    monkeypatch,
):
    monkeypatch.setattr(device_trials, "current_device", lambda: "cpu")
    for num_gpus, state in ((0, "warn"), (2, "wrong")):
        monkeypatch.setattr(doctor, "num_local_gpus", lambda number=num_gpus: number)
        check = doctor.check_devices()
        assert (check.state, check.figures["accelerators"]) == (state, 0)
    assert "2 GPUs" in check.what


@pytest.mark.parametrize(
    ("on_gpu", "state"),
    [
        ({"dev/loss": 2.0005, "test/bleu": 30.0}, "ok"),  # a rounding changed a word
        ({"dev/loss": 2.2, "test/bleu": 20.0}, "wrong"),
        ({"dev/loss": float("nan"), "test/bleu": 20.0}, "wrong"),
        ({"test/bleu": 20.0}, "wrong"),
    ],
)
def test_a_device_with_other_losses_is_wrong(on_gpu, state, monkeypatch):
    on_cpu = {"dev/loss": 2.0, "test/bleu": 20.0, "dev/tokens_per_s": 5.0}

    def run(place, graph, device="cpu"):
        return SimpleNamespace(metrics=on_cpu if device == "cpu" else on_gpu | {"dev/tokens_per_s": 900.0})

    monkeypatch.setattr(device_trials, "trial_in", run)
    monkeypatch.setattr(device_trials, "small_trial", lambda path: None)
    monkeypatch.setattr(device_trials, "current_device", lambda: "cuda:0")
    check = doctor.check_system("trainables.prlm_fusion")
    assert check.state == state
    assert list(check.figures["unequal"]) == ([] if state == "ok" else ["dev/loss"])


def test_nodes_with_other_versions_are_told():
    assert check_equal_versions({"torch 2.13"}).state == "ok"
    different = check_equal_versions({"torch 2.13", "torch 2.12"})
    assert different.state == "wrong"
    assert "torch 2.12 / torch 2.13" in different.what


def test_a_check_that_breaks_is_wrong_and_the_others_go_on():
    def breaks():
        raise RuntimeError("driver: /dev/nvidia0 vanished")

    broken = run_check("devices", breaks)
    assert (broken.state, broken.name) == ("wrong", "devices")
    assert "vanished" in broken.what
    assert "--json" in broken.remedy
