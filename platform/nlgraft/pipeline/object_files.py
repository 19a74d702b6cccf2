"""The file operations of a store, implemented for object stores: s3://, gs://, az://.

Writing a key only if it is missing, or only if it is unchanged, rests on the conditional requests of the
service (S3's If-None-Match and If-Match, generations on Google Cloud).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import ObjectStore, S3Store, from_url

from nlgraft.basics.errors import PlaceError, StoreError, nearest
from nlgraft.basics.wording import without_credentials
from nlgraft.pipeline.integrity import (
    ArtifactDamaged,
    FileEntry,
    find_damage,
    host_fault,
    remember_verified,
    remove_tree,
)
from nlgraft.pipeline.local_files import LocalFiles, Scratch

_CHUNK_BYTES = 8 * 2**20
_NUM_THREADS = 8
_NUM_FETCHES = 3
_MAX_ERROR_CHARACTERS = 400
_METADATA_SERVICE = re.compile("/latest/api/token|/computeMetadata/|/metadata/identity/")
"""Paths at which the metadata service of a cloud machine gives out credentials."""
# A request may move a checkpoint of gigabytes; a stalled one is noticed by its reads.
_CLIENT: Any = {"timeout": "1h", "read_timeout": "60s", "connect_timeout": "10s"}
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
# The names that pyarrow gives to options of S3 URIs, since Ray opens the same URI through pyarrow.
_S3_OPTIONS = ("endpoint_override", "region", "scheme")


class ObjectFiles:
    """Objects below one prefix, with a local directory that keeps what was fetched.

    Args:
        objects: The object store, its prefix included.
        name: The place in messages, without credentials.
        cache: Fetched directories lie here by their key.
    """

    def __init__(
        self,
        objects: ObjectStore,
        name: str,
        cache: Path,
    ) -> None:
        self.name = name
        self.cache = cache
        self.scratch = Scratch(cache / "tmp")
        self._objects = objects

    @classmethod
    def from_uri(cls, uri: str, cache: Path | None = None) -> ObjectFiles:
        """Open a place by its URI; no request is sent yet.

        Args:
            uri: ``s3://bucket/prefix?endpoint_override=host:9000&scheme=http&region=...``, ``gs://...`` or
                ``az://...``; credentials come from the URI, else from where the provider keeps them.
            cache: By default a folder for this place below ``$NLGRAFT_CACHE`` or ``~/.cache/nlgraft``.

        Raises:
            PlaceError: The URI is not understood.
        """
        public = without_credentials("".join(uri.split()))
        if cache is None:
            base = Path(os.environ.get("NLGRAFT_CACHE", "~/.cache/nlgraft")).expanduser()
            cache = base / hashlib.sha256(public.encode()).hexdigest()[:16]
        try:
            parts = urlsplit(uri)
            return cls(_open(uri), f"{parts.scheme}://{parts.hostname}{parts.path}", cache)
        except (BaseError, ValueError) as error:
            raise PlaceError(
                f"storage {public!r} cannot be opened: {without_credentials(_first_line(error))}. Allowed: a "
                "directory, file:///, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"
            ) from None  # the error itself quotes the URI, credentials included

    def read(self, key: str) -> bytes | None:
        """Read a key; None if it is missing."""
        versioned = self._get(key)
        return None if versioned is None else versioned[0]

    def write(self, key: str, data: bytes) -> None:
        """Write a key in one step, replacing what was there."""
        with self._service_errors("write", key):
            self._objects.put(key, data)

    def create(self, key: str, data: bytes) -> bool:
        """Write a key only if it is missing."""
        with self._service_errors("write", key):
            try:
                self._objects.put(key, data, mode="create")
            except AlreadyExistsError:
                # A request is sent again if its answer was lost, and then finds what it has written itself.
                return self.read(key) == data
        return True

    def replace(
        self,
        key: str,
        old: bytes | None,
        new: bytes,
    ) -> bool:
        """Write a key only if it holds `old` (None: is missing)."""
        if old is None:
            return self.create(key, new)
        versioned = self._get(key)
        if versioned is None or versioned[0] != old:
            return False
        with self._service_errors("write", key):
            try:
                self._objects.put(key, new, mode=versioned[1])
            except (PreconditionError, FileNotFoundError):
                # As in `create`: a repeated request may be refused because the first one succeeded.
                return self.read(key) == new
        return True

    def delete(self, key: str, expected: bytes | None = None) -> None:
        """Delete a key, or with `expected` only if it held that a moment ago."""
        # obstore has no conditional delete, so another writer may come between.
        if expected is None or self.read(key) == expected:
            with self._service_errors("delete", key), contextlib.suppress(FileNotFoundError):
                self._objects.delete(key)

    def delete_tree(self, key: str) -> None:
        """Delete everything below a key, in the store and in the cache; nothing there is fine."""
        keys = list(self._list(key))
        with self._service_errors("delete", key):
            if keys:
                self._objects.delete(keys)
        remove_tree(self.cache / key)

    def names(self, key: str) -> list[str]:
        """List the names directly below a key, sorted; hidden ones left out."""
        with self._service_errors("list", key):
            listing = self._objects.list_with_delimiter(key)
        paths = [*listing["common_prefixes"], *(entry["path"] for entry in listing["objects"])]
        names = {path.rstrip("/").rpartition("/")[2] for path in paths}
        return sorted(name for name in names if not name.startswith("."))

    def existing(self, keys: Iterable[str]) -> set[str]:
        """Select the keys that exist."""
        candidates = list(keys)
        return {
            key for key, head in zip(candidates, _in_threads(self._head, candidates), strict=True) if head
        }

    def sizes(self, key: str) -> dict[str, int]:
        """List the bytes of every object below a key, by its key; hidden ones left out."""
        sizes = self._list(key).items()
        return {path: size for path, size in sizes if not path.rpartition("/")[2].startswith(".")}

    def modified_at(self, key: str) -> float | None:
        """Return the Unix time of the last write by the service's clock; None if the key is missing."""
        head = self._head(key)
        return None if head is None else head["last_modified"].timestamp()

    def put_directory(
        self,
        source: Path,
        key: str,
        entries: Mapping[str, FileEntry],
    ) -> Path:
        """Upload files of a local directory, which becomes the cached copy."""

        def upload(name: str) -> None:
            with self._service_errors("write", f"{key}/{name}"):
                self._objects.put(f"{key}/{name}", source / name)

        _in_threads(upload, entries)
        return self._keep(source, key, entries)

    def damage(
        self,
        key: str,
        entries: Mapping[str, FileEntry],
        *,
        is_afresh: bool = False,
    ) -> str | None:
        """Compare names and sizes, and checksums if `is_afresh`; else when the files are fetched."""
        sizes = self._list(key)
        for name, entry in entries.items():
            size = sizes.get(f"{key}/{name}")
            if size is None:
                return f"{name} is missing"
            if size != entry.bytes:
                return f"{name} has {size} bytes, the manifest says {entry.bytes}"
            if is_afresh and self._sha256(f"{key}/{name}") != entry.sha256:
                return f"{name} has another checksum than the manifest says"
        return None

    def fetch(self, key: str, entries: Mapping[str, FileEntry]) -> Path:
        """Return the cached copy of the files below a key, downloading them if there is none."""
        target = self.cache / key
        for _ in range(_NUM_FETCHES):
            # Held before it is compared, since another process may be making room.
            hold(target)
            if find_damage(target, entries) is None:
                return target
            self._download(key, entries)
        raise StoreError(f"{target}: is removed as soon as it is fetched; free space there")

    def _download(self, key: str, entries: Mapping[str, FileEntry]) -> None:
        def download(name: str) -> None:
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            # A missing file is skipped here; `find_damage` reports it.
            with self._service_errors("read", f"{key}/{name}"), contextlib.suppress(FileNotFoundError):
                chunks = self._objects.get(f"{key}/{name}").stream(min_chunk_size=_CHUNK_BYTES)
                with (scratch / name).open("wb") as sink:
                    for chunk in chunks:
                        sink.write(chunk)

        with self.scratch.held(key.rpartition("/")[2]) as scratch:
            _in_threads(download, entries)
            damage = find_damage(scratch, entries)
            if damage is not None:
                raise ArtifactDamaged(f"{self.name}: {key}: {damage}")
            self._keep(scratch, key, entries)

    def _sha256(self, key: str) -> str:
        digest = hashlib.sha256()
        with self._service_errors("read", key), contextlib.suppress(FileNotFoundError):
            for chunk in self._objects.get(key).stream(min_chunk_size=_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    def _keep(
        self,
        source: Path,
        key: str,
        entries: Mapping[str, FileEntry],
    ) -> Path:
        """Move a directory into the cache; another process of this host may be doing the same."""
        target = self.cache / key
        target.parent.mkdir(parents=True, exist_ok=True)
        make_room(self.cache)
        for _ in range(2):
            try:
                source.rename(target)
            except OSError:  # the name is taken; an intact copy there is as good as this one
                if find_damage(target, entries) is None:
                    remove_tree(source)
                    return target
                remove_tree(target)
            else:
                remember_verified(target, entries)
                return target
        raise StoreError(f"{target}: the cached copy is damaged and cannot be replaced; remove it")

    def _get(self, key: str) -> tuple[bytes, Any] | None:
        """Data of a key and the version for a conditional write; None if it is missing."""
        with self._service_errors("read", key):
            try:
                response = self._objects.get(key)
                data = bytes(response.bytes())
            except FileNotFoundError:
                return None
        version = {name: response.meta[name] for name in ("e_tag", "version")}
        return data, {name: value for name, value in version.items() if value is not None}

    def _head(self, key: str) -> Any:
        with self._service_errors("look at", key):
            try:
                return self._objects.head(key)
            except FileNotFoundError:
                return None

    def _list(self, key: str) -> dict[str, int]:
        with self._service_errors("list", key):
            pages = self._objects.list(key or None)  # requested while they are read
            return {entry["path"]: entry["size"] for page in pages for entry in page}

    @contextlib.contextmanager
    def _service_errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, BaseError) as error:
            if getattr(error, "errno", None):  # of this host; the service's errors have no number
                raise host_fault(error, self.cache) from error
            reason = _first_line(error)
            if _METADATA_SERVICE.search(reason):
                raise PlaceError(
                    f"storage {self.name}: no credentials in the environment, and this machine has none "
                    f"({reason}); set those of the provider, e.g. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                ) from error
            raise StoreError(f"{self.name}: cannot {action} {key}: {reason}") from error


def _open(uri: str) -> ObjectStore:
    parts = urlsplit(uri)
    if parts.scheme != "s3":
        if parts.query:
            raise ValueError(f"options after '?' belong to s3:// only, given {parts.query!r}")
        return from_url(uri, client_options=_CLIENT, retry_config=_RETRIES)
    options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    for option in options:
        if option not in _S3_OPTIONS:
            raise ValueError(f"option {option!r} is unknown. {nearest(option, _S3_OPTIONS)}")
    scheme = options.get("scheme", "https")
    config: dict[str, Any] = {"region": options["region"]} if "region" in options else {}
    if "endpoint_override" in options:
        config["endpoint"] = f"{scheme}://{options['endpoint_override']}"
    if parts.username is not None:
        config["access_key_id"] = unquote(parts.username)
        config["secret_access_key"] = unquote(parts.password or "")
    else:
        config |= _profile()
    client: Any = {**_CLIENT, "allow_http": scheme == "http"}
    return S3Store(
        parts.hostname,
        prefix=parts.path.strip("/"),
        client_options=client,
        retry_config=_RETRIES,
        **config,
    )


def _profile() -> dict[str, Any]:
    """Let boto3 find the credentials where an AWS profile is set up, whose files obstore does not read."""
    names = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_PROFILE")
    is_set_up = any(name in os.environ for name in names) or Path("~/.aws").expanduser().is_dir()
    if "AWS_ACCESS_KEY_ID" in os.environ or not is_set_up:
        return {}
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise ValueError(
            "an AWS profile needs boto3 (pip install boto3), or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        ) from error
    try:
        return {"credential_provider": Boto3CredentialProvider()}
    except BotoCoreError as error:
        raise ValueError(str(error)) from error


def _first_line(error: BaseException) -> str:
    """Message of an error without the debug print and the XML that obstore appends."""
    text = str(error).partition("\n\nDebug source")[0].partition("<?xml")[0]
    return " ".join(text.split())[:_MAX_ERROR_CHARACTERS]


def _in_threads(function: Callable[[str], Any], names: Iterable[str]) -> list[Any]:
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="store") as pool:
        return list(pool.map(function, names))


Files = LocalFiles | ObjectFiles


# Local copies of objects: the least recently used are removed when a disk fills up.
#
# A process locks each of the copies that it fetched last; the kernel frees the locks when the process ends.
# On file systems without such locks nothing is removed.


_FREE_SHARE = 0.1
# A stage has few inputs; each copy that is held takes a file descriptor.
_NUM_HELD = 32
_held: deque[int] = deque()


def hold(directory: Path) -> None:
    """Keep a directory, if it is there, from being removed, and note that it is used now."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        _held.append(descriptor)
        if len(_held) > _NUM_HELD:
            os.close(_held.popleft())
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)


def make_room(root: Path) -> None:
    """Remove copies below a root that no process holds until a tenth of its disk is free."""
    if not _is_short(root):
        return
    files = LocalFiles(root)
    copies = root.glob("[ac]*/*/*/*")
    for directory in sorted(copies, key=lambda path: files.modified_at(os.fspath(path)) or 0.0):
        if _is_short(root):
            with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
                descriptor = os.open(directory, os.O_RDONLY)
                closing.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Away in one step: whoever waits for the lock finds nothing there and fetches it again.
                remove_tree(directory.rename(directory.with_name(f".{uuid.uuid4().hex}")))


def _is_short(root: Path) -> bool:
    usage = shutil.disk_usage(root)
    return usage.free < _FREE_SHARE * usage.total
