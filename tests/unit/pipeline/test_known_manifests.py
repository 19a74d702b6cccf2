"""Which manifests a process knows of, and how often it lists them."""

from nlgraft.basics.pacing import Pacer
from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore, Decision


def publish(store, rate):
    stage = Stage(name="train", run="a.b:c", config={"rate": rate})
    directory = store.new_scratch(stage)
    (directory / "weights").write_text("x")
    store.publish(stage, directory)
    return stage


def reason(store, rate):
    verdict = store.verify(Stage(name="train", run="a.b:c", config={"rate": rate}))
    assert verdict.decision is Decision.MISS
    return verdict.reason


def test_a_folder_that_is_slow_to_list_is_listed_rarely_and_own_artifacts_are_known_at_once(
    tmp_path, monkeypatch
):
    """Else each of 10,000 short trials lists the artifacts of all the others."""
    store, other = ArtifactStore.open(tmp_path), ArtifactStore.open(tmp_path)
    assert "no artifact of stage" in reason(store, 1.0)
    listed = []
    names = LocalFiles.names
    clock_s = 100.0

    def slow_names(self, key):
        nonlocal clock_s
        listed.append(key)
        clock_s += 1.0
        return names(self, key)

    monkeypatch.setattr(LocalFiles, "names", slow_names)
    monkeypatch.setattr(store._known, "_listings", {"train": Pacer(0.0, 0.02, lambda: clock_s)})
    first = publish(store, 2.0)
    listed.clear()  # publishing looks for what killed writers left in the artifact's own folder
    assert reason(store, 3.0) == f"changed field rate (2.0 -> 3.0) since {first.fingerprint[:12]}"
    second = publish(store, 4.0)
    third = publish(other, 5.0)
    assert second.fingerprint[:12] in reason(store, 4.5)
    assert listed.count("artifacts/train") == 1
    clock_s += 51.0  # a listing took 1 s, and may take 2 % of the time
    store_names = {manifest.fingerprint for manifest in store._known.of("train")}
    assert store_names == {first.fingerprint, second.fingerprint, third.fingerprint}
    assert listed.count("artifacts/train") == 2
