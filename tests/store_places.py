"""What tests of stores share."""

from pathlib import Path

from pipeline_stages import number

from nlgraft.pipeline.object_files import Files
from nlgraft.pipeline.store import ArtifactStore


def files_of(store: ArtifactStore) -> Files:
    return store._files


def publish(store: ArtifactStore, value: int = 1, text: str | None = None) -> Path:
    scratch = store.new_scratch(number(value))
    (scratch / "deep").mkdir()
    (scratch / "deep" / "number.txt").write_text(str(value) if text is None else text)
    (scratch / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    return store.publish(number(value), scratch, started_at=5.0, duration_s=2.5, reason="missing")
