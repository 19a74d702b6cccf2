"""Every kind of store: a directory, an S3-compatible server, one whose answers get lost."""

import sys
from pathlib import Path

import pytest

from nlgraft.pipeline.store import ArtifactStore
from tests.proxies import LosingProxy, listening

# The toy stages must be importable.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "pipeline"))


@pytest.fixture(scope="session")
def losing_s3_server(s3_server):
    """The same server through a network that loses the answer to the first change of each key."""
    with listening(s3_server, LosingProxy) as proxy:
        yield proxy.address.removeprefix("http://")


@pytest.fixture(params=["local", "s3", "losing_s3"])
def open_store(request, tmp_path):
    """Opens one place, each time as from another host: with a cache of its own."""
    num_opened = 0

    def new_cache():
        nonlocal num_opened
        num_opened += 1
        return tmp_path / f"cache{num_opened}"

    def open_local(**options):
        return ArtifactStore.open(tmp_path / "store", **options)

    def open_s3(**options):
        return ArtifactStore.open(uri, cache=new_cache(), **options)

    if request.param == "local":
        return open_local
    server, direct = (request.getfixturevalue(name) for name in (f"{request.param}_server", "s3_server"))
    uri = request.getfixturevalue("s3_uri").replace(direct, server)
    return open_s3
