import sys
from types import ModuleType, SimpleNamespace

import pytest

from nlgraft.basics.errors import DataError
from nlgraft.text.corpora import load_corpus, load_split, test_set_files
from nlgraft.text.corpus_config import HuggingFaceConfig

test_set_files.__test__ = False  # a function under test, not a test  # type: ignore[attr-defined]


class Rows(list):
    """Stand-in for the result of ``datasets.load_dataset``, as far as it is used."""

    def __init__(self, rows, names):
        super().__init__(rows)
        self.column_names = list(rows[0]) if rows else []
        self.features = {"label": SimpleNamespace(names=names)}

    def __getitem__(self, column):
        return [row[column] for row in self]


@pytest.fixture
def hub(monkeypatch):
    requested = []
    rows = [
        {"translation": {"en": "a dog", "de": "ein\nHund"}, "label": 1, "n": 1.5},
        {"translation": {"en": "a cat", "de": "eine Katze"}, "label": 0, "n": 2.5},
    ]

    def load_dataset(path, name, split, revision):
        requested.append((path, name, split, revision))
        if path == "nowhere":
            raise FileNotFoundError("no such dataset")
        return Rows([] if split == "empty" else rows, ["bad", "good"])

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return requested


def config(**more):
    settings = {"corpus": "huggingface", "path": "wmt14", "name": "de-en", "revision": "abc"}
    return HuggingFaceConfig.model_validate({**settings, "sources": "translation.en", **more})


def test_columns_are_reached_by_dots_and_lines_stay_lines(hub):
    streams = load_split(config(target="translation.de", label="label"), "dev")
    assert streams == {
        "source 0": ["a dog", "a cat"],
        "target": ["ein Hund", "eine Katze"],
        "label": ["good", "bad"],
    }
    assert hub == [("wmt14", "de-en", "validation", "abc")]


def test_a_hub_dataset_is_selected_like_files(hub):
    corpora = load_corpus(config(limits={"train": 1}, keep={"words": ["cat"]}))
    assert corpora["train"].sources == [["a cat"]]
    assert corpora["test"].selected is not None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sources": "text"}, "no column 'text' for source 0; it has translation, label, n"),
        ({"sources": "translation.fr"}, "no 'fr' inside; it has en, de"),
        ({"sources": "translation"}, "dict instead of text"),
        ({"sources": "n"}, "float instead of text"),
        ({"path": "nowhere"}, "cannot be loaded: FileNotFoundError: no such dataset"),
        ({"splits": {"train": "empty", "dev": "x", "test": "x"}}, "the split is empty"),
    ],
)
def test_what_is_not_there_is_named(hub, more, message):
    with pytest.raises(DataError, match=message):
        load_split(config(**more), "train")


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'nlgraft\[datasets\]'"):
        load_split(config(), "train")


def test_splits_are_all_named():
    with pytest.raises(ValueError, match="splits names no test"):
        config(splits={"train": "a", "dev": "b"})


def test_sacrebleu_files_come_from_its_cache_or_the_network(monkeypatch, tmp_path):
    from sacrebleu import utils

    monkeypatch.setattr(utils, "get_source_file", lambda *_: str(tmp_path / "src"))
    monkeypatch.setattr(utils, "get_reference_files", lambda *_: [str(tmp_path / "ref"), "second"])
    files = test_set_files("wmt14/full", "en-de")
    assert files.streams() == {"source 0": str(tmp_path / "src"), "target": str(tmp_path / "ref")}


@pytest.mark.parametrize(
    ("test_set", "langpair", "message"),
    [("wmt1066", "en-de", "no such test set"), ("wmt14/full", "en-xx", "no en-xx; it has cs-en")],
)
def test_unknown_test_sets_are_named(test_set, langpair, message):
    with pytest.raises(DataError, match=message):
        test_set_files(test_set, langpair)


@pytest.mark.parametrize("error", [OSError("no route"), SystemExit(1)])
def test_a_failed_download_is_told(monkeypatch, error):
    from sacrebleu import utils

    def fails(*_):
        raise error

    monkeypatch.setattr(utils, "get_source_file", fails)
    with pytest.raises(DataError, match="wmt14/full en-de"):
        test_set_files("wmt14/full", "en-de")


def test_what_save_to_disk_wrote_is_read(hub, tmp_path):
    datasets = sys.modules["datasets"]  # the stand-in
    datasets.load_from_disk = lambda path: {"validation": Rows([{"text": path}], ["good"])}
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["validation"]}')
    streams = load_split(config(path=str(tmp_path), sources="text"), "dev")
    assert (streams["source 0"], hub) == ([str(tmp_path)], [])
