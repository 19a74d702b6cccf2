"""Every kind of store: a directory, an S3-compatible server, one whose answers get lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from nlgraft.pipeline.store import ArtifactStore
from tests.proxies import LosingProxy, listening
from tests.store_places import OpenStore


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """An S3-compatible server on loopback."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def losing_s3_server(s3_server: str) -> Iterator[str]:
    """The same server through a network that loses the answer to the first change of each key."""
    with listening(s3_server, LosingProxy) as proxy:
        yield proxy.address.removeprefix("http://")


@pytest.fixture(params=["local", "s3", "losing_s3"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    """Opens one place, each time as from another host: with a cache of its own."""
    import boto3

    num_opened = 0

    def new_cache() -> Path:
        nonlocal num_opened
        num_opened += 1
        return tmp_path / f"cache{num_opened}"

    def open_local(**options) -> ArtifactStore:
        return ArtifactStore.open(tmp_path / "store", **options)

    def open_s3(**options) -> ArtifactStore:
        return ArtifactStore.open(uri, cache=new_cache(), **options)

    if request.param == "local":
        return open_local
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    server = request.getfixturevalue(f"{request.param}_server")
    bucket = f"bucket-{tmp_path.name.replace('_', '-').lower()[:50]}"
    direct = f"http://{request.getfixturevalue('s3_server')}"
    boto3.client("s3", endpoint_url=direct, region_name="us-east-1").create_bucket(Bucket=bucket)
    uri = f"s3://{bucket}/some/prefix?endpoint_override={server}&scheme=http&region=us-east-1"
    return open_s3
