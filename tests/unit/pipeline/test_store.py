"""Behaviour particular to a store in a local directory; tests/contract has what all kinds share."""

import errno
import os
from pathlib import Path

import pytest
from pipeline_stages import number

from nlgraft.basics.errors import ContractError, PlaceError, StoreError
from nlgraft.pipeline import integrity
from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.store import ArtifactStore, Decision
from tests.processes import python


def publish(store, value=1):
    scratch = store.new_scratch(number(value))
    (scratch / "number.txt").write_text(str(value))
    return store.publish(number(value), scratch)


@pytest.mark.parametrize("form", ["plain", "path", "file", "relative"])
def test_ways_to_name_a_directory(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "a store"
    uri = {"plain": str(root), "path": root, "file": root.as_uri(), "relative": "a store"}[form]
    store = ArtifactStore.open(uri)
    assert (store.is_local, store.uri) == (True, str(root))
    assert not root.exists()
    publish(store)
    assert ArtifactStore.open(store.uri).has(number(1))


def test_places_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file; give a directory"):
        ArtifactStore.open(tmp_path / "file")


def test_hashed_once_a_process(store, monkeypatch):
    path = publish(store)
    hashed = []
    original = integrity.file_sha256
    monkeypatch.setattr(integrity, "file_sha256", lambda path: hashed.append(path) or original(path))
    for _ in range(3):
        assert store.verify(number(1)).decision is Decision.HIT
        store.fetch(number(1))
    assert hashed == []  # this process wrote it
    monkeypatch.setattr(integrity, "_verified", set())
    for _ in range(3):
        store.fetch(number(1))
    assert hashed == [path / "number.txt"]
    os.utime(path / "number.txt", (1, 1))
    store.fetch(number(1))
    assert len(hashed) == 2


def test_a_link_out_of_an_artifact_is_not_followed(store, tmp_path, monkeypatch):
    path = publish(store)
    (tmp_path / "elsewhere.txt").write_text("1")  # the same bytes, so that checksums alone see nothing
    path.chmod(0o755)
    (path / "number.txt").unlink()
    (path / "number.txt").symlink_to(tmp_path / "elsewhere.txt")
    monkeypatch.setattr(integrity, "_verified", set())
    verdict = store.verify(number(1))
    assert (verdict.decision, "link that leads outside" in verdict.reason) == (Decision.CORRUPT, True)


def test_publishing_a_directory_of_ones_own(store, tmp_path):
    """It is copied, and stays."""
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    (tmp_path / "mine" / "deep" / "x.txt").write_text("x")
    path = store.publish(number(1), tmp_path / "mine")
    assert (path / "deep" / "x.txt").read_text() == "x"
    assert (tmp_path / "mine" / "deep" / "x.txt").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "wrote no file"),
        (lambda path: (path / "a\\b.txt").touch(), "without backslashes"),
        (lambda path: (path / "model.pt").touch(), r"stage number: model\.pt: the store holds no pickles"),
        (lambda path: (path / "link").symlink_to("/"), "link: is a symbolic link"),
    ],
)
def test_what_cannot_be_stored(store, make, message):
    scratch = store.new_scratch(number(1))
    make(scratch)
    with pytest.raises(ContractError, match=message):
        store.publish(number(1), scratch)
    assert not store.has(number(1))


def test_abandoned_things_are_removed(store, tmp_path):
    """A killed process's scratch and lease go, a living one's stay; checkpoints of stored stages go."""
    code = (
        "import os, sys; from pathlib import Path; from nlgraft.pipeline.store import ArtifactStore; "
        "from pipeline_stages import number; store = ArtifactStore.open(sys.argv[1]); "
        "(store.new_scratch(number(5)) / 'half.txt').write_text('x'); store.leases.acquire('a' * 64); "
        "[store.checkpoints(number(n)).save(1, lambda p: (p / 's.json').write_text('1')) for n in (1, 5)]; "
        "os._exit(9)"
    )
    python("-c", code, store.uri, code=9)
    assert len(list(tmp_path.glob("store/tmp/[!.]*"))) == 1
    publish(store)  # whoever begins to write cleans up as well, as on hosts that have no driver
    assert not list(tmp_path.glob("store/tmp/[!.]*"))
    mine = store.new_scratch(number(6))
    store.remove_abandoned()
    assert list(tmp_path.glob("store/tmp/[!.]*")) == [mine]
    assert not list((tmp_path / "store" / "leases").glob("*.json"))
    assert store.checkpoints(number(1)).newest_step() is None
    assert store.checkpoints(number(5)).newest_step() == 1


@pytest.mark.parametrize(
    ("number_of_error", "message"),
    [
        (errno.EACCES, "Permission denied. Make it accessible to this user, or name another store"),
        (errno.EROFS, "Read-only file system. Mount it writable, or name another store"),
        (errno.ENOSPC, "No space left on device. Free space there, or name another store"),
    ],
)
def test_a_place_that_refuses_is_named_with_a_remedy(store, monkeypatch, number_of_error, message):
    path = publish(store)

    def refuse(self, *_, **__):
        raise OSError(number_of_error, os.strerror(number_of_error), str(self))

    for name in ("write_bytes", "mkdir", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    for use in (
        lambda: store.records.write("trials", "x", {}),
        lambda: store.leases.lock_study("x"),
        lambda: store.new_scratch(number(2)),
        lambda: store.discard(number(1)),
    ):
        with pytest.raises(StoreError, match=rf"^the store cannot (write|delete) {store.uri}.*: {message}"):
            use()
    assert store.fetch(number(1)) == path
    assert not store.leases.is_study_locked("x")


def test_a_place_below_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PlaceError, match=rf"storage {tmp_path}/file/store.*Not a directory"):
        ArtifactStore.open(tmp_path / "file" / "store")


def test_a_lease_is_judged_in_a_place_that_cannot_be_written(store, monkeypatch):
    """`nlgraft status` on a read-only mount."""

    def refuse(key, data):
        raise StoreError("read only")

    with store.leases.lock_study("x"):
        monkeypatch.setattr(store._files, "write", refuse)
        assert store.leases.is_study_locked("x")


def test_a_folder_that_is_not_there_yet_holds_nothing_to_replace_or_delete(tmp_path):
    files = LocalFiles(tmp_path / "not" / "yet")
    assert not files.replace("key", b"old", b"new")
    LocalFiles(tmp_path / "neither" / "this").delete("key", b"old")


@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError])
def test_a_listing_leaves_out_a_folder_that_vanishes_but_none_that_it_may_not_enter(
    tmp_path, monkeypatch, kind
):
    """As checkpoints do while a training goes on."""
    files = LocalFiles(tmp_path)
    for name in ("100", "200"):
        files.write(f"checkpoints/{name}/state", b"1")
    scandir = os.scandir

    def scan(path):
        if not isinstance(path, int) and Path(path).name == "100":
            raise kind(errno.ENOENT if kind is FileNotFoundError else errno.EACCES, "refused", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    if kind is FileNotFoundError:
        assert files.sizes("checkpoints") == {"checkpoints/200/state": 1}
    else:
        with pytest.raises(StoreError, match="cannot list"):
            files.sizes("checkpoints")
    assert files.sizes("nowhere") == {}
