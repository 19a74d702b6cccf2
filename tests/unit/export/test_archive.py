"""A packed study is judged again elsewhere, without training: the same tables, or a refusal."""

import errno
import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

import nlgraft
from nlgraft.analysis.data.registration import open_registrations
from nlgraft.basics.errors import DataError
from nlgraft.pipeline.manifest import MANIFEST
from nlgraft.pipeline.store import ArtifactDamaged, ArtifactStore
from nlgraft.runs.archive import check, pack, unpack
from nlgraft.runs.housekeeping import differences
from nlgraft.study.data.design import cells
from nlgraft.study.planning.planner import check_cells
from nlgraft.study.public import Study
from nlgraft.study.reading.reader import INPUTS
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.files import below_root
from tests.commands import nlgraft as invoke
from tests.newcomer_text import write_lines
from tests.processes import python
from tests.unit.export.conftest import DOCUMENT, run_all

ROOT = Path(__file__).parents[3]


def write_study(root):
    """Write a study on files of its own, and its text."""
    (root / "text").mkdir(parents=True)
    splits = {}
    made = load_corpus(ConlangConfig(corpus="conlang", task="multi_source", train=100, dev=8, test=6))
    for split, corpus in made.items():
        files = {f"{split}.{k}": lines for k, lines in enumerate(corpus.sources)} | {
            f"{split}.t": corpus.target
        }
        for name, lines in files.items():
            write_lines(root / "text" / name, lines)
        # One by a path of its own, as of a shared disk.
        splits[split] = {
            "sources": [f"text/{split}.0", f"text/{split}.1"],
            "target": str(root / f"text/{split}.t"),
        }
    document = {**DOCUMENT, "data": {"corpus": "files", **splits}, "storage": {"path": "store"}}
    (root / "small.json").write_text(json.dumps(document | {"seeds": [1, 2]}))


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """Where a study was run; its file and its text lie there, and nowhere else."""
    root = tmp_path_factory.mktemp("origin")
    write_study(root)
    return root


@pytest.fixture(scope="module")
def archive(origin, tmp_path_factory):
    """The archive, and the tables as the origin itself shows them; then the origin is gone."""
    study = Study.from_yaml(origin / "small.json", [f"storage.path={origin}/store"])
    nlgraft.register(study)
    run_all(study)
    shown = nlgraft.load(study).render("csv")
    path = tmp_path_factory.mktemp("packed") / "small.zip"
    invoke("pack", origin / "small.json", f"storage.path={origin}/store", "--out", path)
    shutil.rmtree(origin)
    return path, shown


def test_the_tables_are_the_same_where_neither_text_nor_store_is(archive):
    """In another process, as on another machine: its store, its text and its study file do not exist."""
    path, shown = archive
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"}
    done = python("-m", "nlgraft", "check", path, cwd=path.parent, env=environment)
    assert "the same tables" in done.stdout
    with zipfile.ZipFile(path) as file:
        assert file.read("tables/comparison.csv").decode() == shown


def test_a_flipped_byte_is_refused_wherever_it_is(archive, tmp_path):
    path, _ = archive
    data = path.read_bytes()
    places = [*range(0, len(data), len(data) // 40), len(data) - 1, len(data) - 80, len(data) - 100]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1
        (tmp_path / "flipped.zip").write_bytes(flipped)
        with pytest.raises(DataError, match="not those that were packed"):
            check(tmp_path / "flipped.zip")
    (tmp_path / "flipped.zip").write_bytes(data[:-1])
    invoke("check", tmp_path / "flipped.zip", code=2)
    (tmp_path / "other.zip").write_text("no archive")
    invoke("check", tmp_path / "other.zip", code=2)


def test_a_forged_score_is_found_although_its_digest_is_right(archive, tmp_path):
    """Somebody changes a record and signs the archive anew: the tables no longer follow from it."""
    from nlgraft.runs import archive as module

    path, _ = archive
    forged = tmp_path / "forged.zip"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(forged, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.startswith("store/records/trials/"):
                record = json.loads(data)
                record["metrics"]["dev/loss"] += 0.25
                data = json.dumps(record).encode()
            new.writestr(name, data)
        new.comment = b" " * module._LENGTH
    with forged.open("r+b") as raw:
        raw.seek(-module._LENGTH, 2)
        raw.write(module._PREFIX + module._digest(forged).encode())
    assert "comparison.csv" in invoke("check", forged, code=1).stderr


def test_an_unpacked_study_is_exported_and_reported_by_its_name(archive, tmp_path):
    path, shown = archive
    invoke("unpack", path, "--out", tmp_path / "store")
    report = invoke("report", "small", "--storage", tmp_path / "store", "--format", "csv").stdout
    assert report.rstrip("\n") == shown.rstrip("\n")
    invoke("export", "small", "--storage", tmp_path / "store", "--out", tmp_path / "model")
    with pytest.raises(DataError, match="give a new directory"):
        unpack(path, tmp_path / "store")


def test_an_unpacked_study_is_as_registered_planned_and_checked_on_its_packed_text(archive, tmp_path):
    unpack(archive[0], tmp_path / "store")
    store = ArtifactStore.open(tmp_path / "store")
    study = Study.from_store("small", store)
    standing = nlgraft.load(study).registration
    assert standing.is_as_registered, str(standing)
    [registration] = open_registrations(store).read().documents.values()
    assert nlgraft.register(study) == registration
    empty = ArtifactStore.open(tmp_path / "empty")
    assert check_cells(study, cells(study), empty).corpora
    assert study.plan().corpora


def test_packed_text_is_read_for_its_own_study_alone(tmp_path):
    """Both in one process, as in `diff`: the file has changed since it was packed, and both read its path."""
    write_study(tmp_path / "origin")
    original = Study.from_yaml(tmp_path / "origin" / "small.json")
    unpacked = ArtifactStore.open(tmp_path / "unpacked")
    original.record(unpacked)
    shutil.copytree(tmp_path / "origin", tmp_path / "unpacked" / INPUTS / below_root(tmp_path / "origin"))
    packed = Study.from_store("small", unpacked)
    assert differences(original, packed)["data"] == []
    changed = tmp_path / "origin" / "text" / "train.0"
    changed.write_text(changed.read_text("utf-8").replace("a", "e"), "utf-8")
    [(name, before, after)] = differences(original, packed)["data"]
    assert name.startswith("text of ")
    assert before != after
    shutil.rmtree(tmp_path / "origin")
    assert differences(packed, packed)["data"] == []


def test_without_models_the_tables_can_still_be_checked(study, tmp_path):
    store = ArtifactStore.open(study.storage.path)
    whole = pack(study, store, tmp_path / "whole.zip")
    small = pack(study, store, tmp_path / "small.zip", has_models=False)
    assert small.num_files < whole.num_files
    assert check(small.path).differing == ()
    again = pack(study, store, tmp_path / "again.zip")
    assert again.digest == whole.digest
    empty = ArtifactStore.open(tmp_path / "empty")
    with pytest.raises(DataError, match="nothing of it has run"):
        pack(study, empty, tmp_path / "empty.zip")


def test_an_archive_that_cannot_be_finished_leaves_the_earlier_one(study, tmp_path, monkeypatch):
    store = ArtifactStore.open(study.storage.path)
    out = tmp_path / "small.zip"
    first = pack(study, store, out)
    written, write = [], zipfile.ZipFile.writestr

    def full_after_three(file, name, *args, **options):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(name)
        write(file, name, *args, **options)

    with monkeypatch.context() as context:
        context.setattr(zipfile.ZipFile, "writestr", full_after_three)
        with pytest.raises(DataError, match=r"small.zip: cannot be written .*No space left"):
            pack(study, store, out)
    assert check(out).digest == first.digest
    assert [path.name for path in tmp_path.iterdir()] == ["small.zip"]


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_gathered(tmp_path):
    study = None
    with pytest.raises(DataError, match=r"x.zip: cannot be written .*No such file or directory"):
        pack(study, study, tmp_path / "no" / "x.zip")


def test_an_archive_replaces_no_pipe(study, tmp_path):
    pipe = tmp_path / "small.zip"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match="no regular file"):
        pack(study, ArtifactStore.open(study.storage.path), pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_damaged_artifact_is_not_packed(study, tmp_path, suffix):
    root = shutil.copytree(study.storage.path, tmp_path / "store")
    files = (path for path in (root / "artifacts").rglob(f"*{suffix}") if path.name != MANIFEST)
    damaged = next(path for path in files if path.stat().st_size)
    damaged.chmod(0o644)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(ArtifactDamaged):
        pack(study, ArtifactStore.open(root), tmp_path / "small.zip")
    assert not (tmp_path / "small.zip").exists()


def write_archive(path, entries, mode=0o600):
    """Write an archive whose digest is right, as who wants to do harm would."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in {"archive.json": b'{"study": "s"}', **entries}.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            file.writestr(info, data, zipfile.ZIP_DEFLATED)
        file.comment = b" " * 71
    raw = path.read_bytes()[:-71]
    path.write_bytes(raw + b"sha256:" + hashlib.sha256(raw).hexdigest().encode())
    return path


LINK = {"store/a": b"/etc/passwd"}


@pytest.mark.parametrize(
    "entries",
    [
        {"archive.json": b"[]"},
        {"archive.json": b'{"study": ["s"]}'},
        {"archive.json": b"[" * 100_000},
        {"store/a": b"", "store/a/b": b""},
        {"store/a/b": b"", "store/a": b""},
        {"store/a": b"", "store/a/": b""},
        LINK,
        {"store/a": b"", "store/" + "b" * 300: b""},
        {"store/" + "b/" * 30_000 + "c": b""},
        {"store/..\\a": b""},
        {"store/a": bytes(100 << 20)},
    ],
)
@pytest.mark.parametrize("command", ["unpack", "check"])
def test_a_foreign_archive_is_refused_and_leaves_nothing(tmp_path, entries, command):
    path = write_archive(tmp_path / "a.zip", entries, 0o120777 if entries is LINK else 0o600)
    done = invoke(command, path, *(["--out", tmp_path / "store"] if command == "unpack" else []), code=2)
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"{path}: ")
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_of_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("nlgraft.runs.archive._MOST_FILES", 2)
    path = write_archive(tmp_path / "a.zip", {"store/a": b"", "store/b": b""})
    assert "3 files" in invoke("unpack", path, "--out", tmp_path / "store", code=2).stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("out", ["/dev/null/store", "/proc/store", "n" * 300])
def test_a_place_that_cannot_be_unpacked_to_is_told(tmp_path, out):
    path = write_archive(tmp_path / "a.zip", {"store/a": b""})
    assert "give another directory" in invoke("unpack", path, "--out", tmp_path / out, code=2).stderr
