"""A study as one file: packed with its artifacts, and judged again elsewhere without training.

A zip file. ``store/`` is a store that holds this study, its ledger and its input files; ``tables/`` what was
made of that store when it was packed. The zip's comment is the SHA-256 of all bytes before it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ValidationError

from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import is_inside, size
from nlgraft.pipeline.integrity import first_problem
from nlgraft.pipeline.manifest import MANIFEST
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord
from nlgraft.runs.run import read_result
from nlgraft.study.data.design import cells
from nlgraft.study.planning.selection import LOOKS, PROPOSALS, search_key
from nlgraft.study.public import Study
from nlgraft.study.reading.reader import INPUTS
from nlgraft.text.files import below_root, noting_inputs, refuse_special

_DESCRIPTION, _STORE, _TABLES = "archive.json", "store", "tables"
_FORMATS = ("json", "csv", "latex")
_JOURNALS = ("ledger", "registrations", "streams")
_PREFIX = b"sha256:"
_LENGTH = len(_PREFIX) + 64
_CHUNK = 1 << 20
_MOST_FILES = 1_000_000
_MOST_COMPRESSED, _MOST_SMALL_BYTES = 100, 64 << 20
"""Text shrinks to a tenth; archives below a megabyte may do better."""
_NAME = re.compile(r"[^/]{1,255}(/[^/]{1,255}){0,99}")
_TIME = (1980, 1, 1, 0, 0, 0)
"""Of every file, so that the same study gives the same archive."""


class _Description(BaseModel):
    study: str


@dataclass(frozen=True)
class Archive:
    """An archive.

    Attributes:
        path: The file.
        study: Name of the packed study, overrides included.
        digest: SHA-256 over it.
        num_files: Its files.
        differing: Tables that come out otherwise than when it was packed.
    """

    path: Path
    study: str
    digest: str
    num_files: int
    differing: tuple[str, ...] = ()


def pack(
    study: Study,
    store: ArtifactStore,
    out: Path,
    *,
    has_models: bool = True,
) -> Archive:
    """Pack a study with everything that its tables rest on.

    Args:
        study: The study.
        store: Its store.
        out: The file to write; a regular file of that name is replaced once the new one is whole.
        has_models: If false, weights are left out: the tables can be checked, nothing can go on.

    Raises:
        DataError: Nothing of the study has run, or the file cannot be written.
        StoreError: An artifact is missing or damaged.
    """
    if out.exists() and not out.is_file():
        raise DataError(f"--out {out}: is there already and no regular file; give another file")
    partial = out.absolute().with_name(f".{out.name}.partial")
    try:
        partial.touch()  # first, since to gather what is packed takes long
        return _packed(study, store, out, partial, has_models=has_models)
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written ({error}); give another file") from error
    finally:
        partial.unlink(missing_ok=True)


def _packed(
    study: Study,
    store: ArtifactStore,
    out: Path,
    partial: Path,
    *,
    has_models: bool,
) -> Archive:
    """Write an archive to ``partial`` and give it its name."""
    with tempfile.TemporaryDirectory(prefix="nlgraft-pack-") as name:
        root = Path(name)
        copied = ArtifactStore.open(root / _STORE)
        weights = _copy(study, store, root / _STORE)
        study.record(copied)
        packed_files = {
            path
            for path in root.rglob("*")
            if path.is_file()
            # Tables enter the copy's ledger, too.
        }
        _write_tables(study.variant, copied, root / _TABLES)
        description = {"format": 1, "study": study.variant, "has_models": has_models}
        (root / _DESCRIPTION).write_text(json.dumps(description) + "\n", "utf-8")
        with zipfile.ZipFile(partial, "w") as file:
            for path in sorted(packed_files | {root / _DESCRIPTION, *(root / _TABLES).iterdir()}):
                _add(file, path.relative_to(root).as_posix(), path.read_bytes())
            for key in weights if has_models else ():
                _add(file, f"{_STORE}/{key}", _read(store, key))
            num_files = len(file.namelist())
            # Room for the digest, which covers all before it.
            file.comment = b" " * _LENGTH
    digest = _digest(partial)
    with partial.open("r+b") as raw:
        raw.seek(-_LENGTH, 2)
        raw.write(_PREFIX + digest.encode())
    partial.replace(out)
    return Archive(out, study.variant, digest, num_files)


def unpack(path: Path, directory: Path) -> Archive:
    """Unpack an archive into a new store.

    Raises:
        DataError: The archive is none, or damaged, or the directory is not empty: ledgers cannot be merged.
    """
    archive = _verified_archive(path)
    try:
        is_taken = directory.exists() and (not directory.is_dir() or any(directory.iterdir()))
        directory.mkdir(parents=True, exist_ok=True)
        if is_taken:
            raise DataError(
                f"{directory}: is not empty; an archive becomes a store of its own, give a new directory"
            )
        try:
            _write_store(path, directory)
        except BaseException:
            # Nothing was in it before.
            shutil.rmtree(directory.resolve(), ignore_errors=True)
            raise
    except OSError as error:
        raise DataError(f"--out {directory}: cannot be written ({error}); give another directory") from error
    return archive


def check(path: Path) -> Archive:
    """Judge a packed study again, without training, and compare every table with the packed one.

    Raises:
        DataError: The archive is none, or a byte of it was changed.
    """
    with tempfile.TemporaryDirectory(prefix="nlgraft-check-") as scratch:
        root = Path(scratch)
        archive = unpack(path, root / _STORE)
        _write_tables(archive.study, ArtifactStore.open(root / _STORE), root / _TABLES)
        with zipfile.ZipFile(path) as file:
            names = [name for name in file.namelist() if name.startswith(f"{_TABLES}/")]
            packed = {name: file.read(name) for name in names}
        made = {f"{_TABLES}/{table.name}": table.read_bytes() for table in (root / _TABLES).iterdir()}
    names = packed.keys() | made.keys()
    differing = sorted(name for name in names if packed.get(name) != made.get(name))
    return Archive(path, archive.study, archive.digest, archive.num_files, tuple(differing))


def _write_store(path: Path, directory: Path) -> None:
    with _opened(path) as file:
        for name in file.namelist():
            if name.startswith(f"{_STORE}/"):
                target = directory / name.removeprefix(f"{_STORE}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with file.open(name) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink, _CHUNK)


def _copy(
    study: Study,
    store: ArtifactStore,
    root: Path,
) -> list[str]:
    """Copy what tables rest on; returns the keys of weights, which they do not."""
    weights = []
    with noting_inputs() as inputs:
        result = read_result(study, store)
        records = {trial.fingerprint: trial.record for trial in result.trials if trial.record is not None}
        if not records:
            raise DataError(f"{study.variant}: nothing of it has run on {store.name}; run it first")
        for key in _keys(study, store, records):
            name = key.rpartition("/")[2]
            # Statistics of segments are safetensors as weights are, but tables rest on them.
            if name.endswith(".safetensors") and not name.startswith("segments-"):
                weights.append(key)
                continue
            _write(root / key, _read(store, key))
    for path, where in inputs.items():
        _write(root / INPUTS / below_root(path), where.read_bytes())
    return weights


def _keys(
    study: Study,
    store: ArtifactStore,
    records: Mapping[str, TrialRecord],
) -> Iterator[str]:
    entries = [stage for record in records.values() for stage in record.stages]
    stages = {(stage["name"], stage["fingerprint"]) for stage in entries}
    for name, fingerprint in sorted(stages):
        manifest = store.manifest(fingerprint)
        if manifest is not None:
            # Of a trial that failed, not every stage has one.
            folder = f"artifacts/{name}/{fingerprint}"
            yield f"{folder}/{MANIFEST}"
            yield from (f"{folder}/{manifest.location}/{file}" for file in sorted(manifest.files))
    folders = [f"records/{PROPOSALS}/{search_key(study, cell)}" for cell in cells(study) if study.search]
    for folder in (*folders, f"records/{LOOKS}", *_JOURNALS):
        yield from sorted(store.sizes(folder))
    yield from (f"records/trials/{fingerprint}.json" for fingerprint in sorted(records))


def _read(store: ArtifactStore, key: str) -> bytes:
    """Read a file of the store, the checksum of an artifact's compared."""
    folder, *within = key.split("/", 4)
    if folder == "artifacts" and len(within) == 4:
        _, fingerprint, _, name = within
        data = store.read_file(fingerprint, name)
        if data is not None:
            return data
    return store.read_key(key)


def _write_tables(name: str, store: ArtifactStore, directory: Path) -> None:
    study = Study.from_store(name, store)
    read_result(study, store).report(directory, formats=_FORMATS)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _add(
    file: zipfile.ZipFile,
    name: str,
    data: bytes,
) -> None:
    # Weights do not get smaller.
    kind = zipfile.ZIP_STORED if name.endswith(".safetensors") else zipfile.ZIP_DEFLATED
    file.writestr(zipfile.ZipInfo(name, _TIME), data, compress_type=kind)


def _digest(path: Path) -> str:
    """Digest everything but the comment."""
    whole, num_left = hashlib.sha256(), path.stat().st_size - _LENGTH
    with path.open("rb") as raw:
        while num_left > 0 and (chunk := raw.read(min(_CHUNK, num_left))):
            whole.update(chunk)
            num_left -= len(chunk)
    return whole.hexdigest()


def _verified_archive(path: Path) -> Archive:
    refuse_special(path)
    try:
        with path.open("rb") as raw:
            raw.seek(-_LENGTH, 2)
            trailer = raw.read()
        digest = _digest(path)
    except OSError as error:
        raise DataError(f"{path}: no archive that `nlgraft pack` wrote ({error})") from error
    if trailer != _PREFIX + digest.encode():
        raise DataError(
            f"{path}: its bytes are not those that were packed; fetch it again. Nothing of it was judged"
        )
    with _opened(path) as file:
        _check_entries(path, file.infolist())
        description = _Description.model_validate_json(file.read(_DESCRIPTION))
        return Archive(path, description.study, digest, len(file.namelist()))


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except DataError:
        raise
    # RuntimeError: encrypted, or compressed by an unknown method.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError, ValueError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else error
        raise DataError(f"{path}: no archive that `nlgraft pack` wrote ({reason})") from error


def _check_entries(path: Path, entries: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse what `pack` never writes, before anything is unpacked."""
    num_bytes = sum(entry.file_size for entry in entries)
    most_bytes = _MOST_SMALL_BYTES + _MOST_COMPRESSED * path.stat().st_size
    if len(entries) > _MOST_FILES or num_bytes > most_bytes:
        raise DataError(
            f"{path}: would unpack to {len(entries):,} files of {size(num_bytes)}; allowed for an archive of "
            f"its size: {_MOST_FILES:,} files of {size(most_bytes)}"
        )
    names = Counter(entry.filename for entry in entries if _NAME.fullmatch(entry.filename))
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    for entry in entries:
        name, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
        is_file = kind in (0, stat.S_IFREG) and name not in folders
        if names[name] != 1 or not is_file or not is_inside(name):
            raise DataError(
                f"{path}: {name[:80]!r} is twice in it, too long, no regular file or leads outside; "
                "this archive is not nlgraft's"
            )
