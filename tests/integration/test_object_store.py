"""A sweep whose store is an S3-compatible server, named by a URI with options."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from nlgraft.execution.cluster import connected
from nlgraft.execution.events import Driver
from nlgraft.execution.sweep import run_sweep
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study


@pytest.fixture
def s3_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("NLGRAFT_CACHE", str(tmp_path / "cache"))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    yield f"s3://bucket/stores/one?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    server.stop()


def test_a_store_with_options_in_its_uri(toy_document: dict[str, Any], s3_uri: str) -> None:
    study = Study.from_dict({**toy_document, "storage": {"path": s3_uri}})
    with connected(None, study.resources):
        outcomes = [
            run_sweep(study, ArtifactStore.open(s3_uri), cells(study), Driver(lambda event: None))
            for _ in range(2)
        ]
    assert [(outcome.num_run, outcome.num_reused, outcome.num_failed) for outcome in outcomes] == [
        (4, 0, 0),
        (0, 4, 0),
    ]
