"""Studies with overrides: their names, and how a store finds them again."""

import json
import re

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.public import Study


@pytest.fixture
def scaled(good):
    return good | {"scales": {"tiny": {"seeds": [3]}, "quick": {"base": {"train": {"max_steps": 7}}}}}


def test_a_variant_is_named_by_study_scale_and_overrides(scaled):
    assert Study.from_dict(scaled).variant == "toy"
    assert Study.from_dict(scaled, ["@tiny"]).variant == "toy@tiny"
    assert Study.from_dict(scaled, ["@tiny", "@quick"]).variant == "toy@tiny@quick"
    named = Study.from_dict(scaled, ["@tiny", "seeds=[7]"]).variant
    assert re.fullmatch(r"toy@tiny-[0-9a-f]{8}", named)
    assert Study.from_dict(scaled, ["seeds=[7]"]).variant == named.replace("tiny-", "")


def test_the_same_overrides_in_other_words_are_the_same_variant(good):
    first = Study.from_dict(good, ["train.max_steps=7", "seeds=[7]"])
    other = Study.from_dict(good, ["seeds=[ 7 ]", "base.train.max_steps=8", "base.train.max_steps=7"])
    assert first.variant == other.variant
    assert first.overrides == ["train.max_steps=7", "seeds=[7]"]
    assert first.variant != Study.from_dict(good, ["train.max_steps=8", "seeds=[7]"]).variant


def test_where_a_study_runs_and_for_how_long_makes_no_variant(good):
    overrides = ["storage.path=s3://u:pw@host/b", "tracking.uri=http://h", "budget.trials=3"]
    study = Study.from_dict(good, [*overrides, "resources.max_concurrent=2", "description=why"])
    assert (study.variant, study.overrides) == ("toy", [])
    assert Study.from_dict(good, ["name=other"]).variant == "other"


def test_a_store_finds_a_study_by_its_name_alone(scaled, tmp_path):
    store = ArtifactStore.open(tmp_path / "store")
    plain, variant = Study.from_dict(scaled), Study.from_dict(scaled, ["@quick", "seeds=[7]"])
    for study in (plain, variant):
        study.record(store)
    stored = Study.from_store(variant.variant, store)
    assert (stored.variant, stored.overrides) == (variant.variant, ["@quick", "seeds=[7]"])
    assert stored.fingerprint == variant.fingerprint != plain.fingerprint
    assert stored.directory == variant.directory
    assert stored.storage.path == str(tmp_path / "store")
    assert Study.from_store("toy", store).fingerprint == plain.fingerprint


def recorded(document, place):
    """A store with the record of a study, and the file of that."""
    store = ArtifactStore.open(place / "store")
    Study.from_dict(document).record(store)
    [path] = (place / "store/records/definitions").iterdir()
    return store, path


def test_a_record_of_an_earlier_version_may_hold_settings_that_were_removed(good, tmp_path):
    store, path = recorded(good, tmp_path)
    record = json.loads(path.read_text())
    record["study"]["resources"] |= {"priority": 1, "use_idle_cpus": False}
    record["study"]["analysis"] |= {"test": "paired_bootstrap", "correction": "none"}
    path.write_text(json.dumps(record))
    assert Study.from_store("toy", store).fingerprint == Study.from_dict(good).fingerprint


def test_a_store_reads_no_variable_of_whoever_opens_it(good, tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD", "hunter2")
    store, path = recorded(good, tmp_path)
    changed = {"study": good | {"description": "${env:PASSWORD}"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(StudyError, match="record names a variable") as caught:
        Study.from_store("toy", store)
    assert "hunter2" not in str(caught.value)


def test_a_removed_setting_in_a_file_is_named_with_those_that_there_are(good):
    good["resources"] = {"priority": 1, "use_idle_cpus": True}
    with pytest.raises(StudyError) as caught:
        Study.from_dict(good)
    for name in ("resources.priority", "resources.use_idle_cpus", "max_cpus"):
        assert name in str(caught.value)


def test_an_unknown_name_is_answered_with_those_that_the_store_holds(good, tmp_path):
    store = ArtifactStore.open(tmp_path / "store")
    with pytest.raises(StudyError, match=r"'toy'.*No study was run there.*--storage"):
        Study.from_store("toy", store)
    study = Study.from_dict(good, ["seeds=[7]"])
    study.record(store)
    with pytest.raises(StudyError, match=f"Allowed: {study.variant}"):
        Study.from_store("toy", store)


def test_records_hold_no_credentials(good, tmp_path):
    store = ArtifactStore.open(tmp_path / "store")
    Study.from_dict(good, ["tracking.uri=http://me:hunter2@host", "seeds=[7]"]).record(store)
    [record] = (tmp_path / "store/records/definitions").iterdir()
    assert "hunter2" not in record.read_text()
