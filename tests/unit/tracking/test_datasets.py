import json

from nlgraft.tracking.layout import tracked_datasets


def files_corpus(directory, text):
    splits = {}
    for split in ("train", "dev", "test"):
        for side in ("sources", "target"):
            (directory / f"{split}.{side}").write_text(f"{split} {side} {text}\n")
        splits[split] = {side: str(directory / f"{split}.{side}") for side in ("sources", "target")}
    return {"corpus": "files", **splits}


def test_each_corpus_of_a_config_is_three_data_sets(tmp_path):
    data = {"upstream": {"corpus": "conlang", "train": 9}, "more": [], "own": files_corpus(tmp_path, "one")}
    datasets = tracked_datasets(data)
    assert [dataset.name for dataset in datasets] == [
        f"{place}/{split}"
        for place in ("upstream/conlang", "own/files")
        for split in ("train", "dev", "test")
    ]
    assert datasets[0].profile == {"segments": 9}
    assert [dataset.context for dataset in datasets[:3]] == ["train", "dev", "test"]
    assert json.loads(datasets[3].source)["split"] == "train"
    assert len({dataset.digest for dataset in datasets}) == 6


def test_the_digest_is_that_of_the_bytes(tmp_path):
    here, there, other = (tmp_path / name for name in ("here", "there", "other"))
    for directory in (here, there, other):
        directory.mkdir()
    same = [tracked_datasets(files_corpus(directory, "one")) for directory in (here, there)]
    assert [dataset.digest for dataset in same[0]] == [dataset.digest for dataset in same[1]]
    changed = tracked_datasets(files_corpus(other, "two"))
    assert {dataset.digest for dataset in changed}.isdisjoint(dataset.digest for dataset in same[0])


def test_data_that_is_no_corpus_of_ours_is_passed_over(tmp_path):
    assert tracked_datasets(None) == ()
    assert tracked_datasets({"path": "x", "limits": [1, 2]}) == ()
    assert tracked_datasets({"corpus": "somebody's own"}) == ()
    missing = files_corpus(tmp_path, "one")
    (tmp_path / "dev.sources").unlink()
    assert tracked_datasets(missing) == ()
