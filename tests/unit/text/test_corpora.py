import gzip

import pytest
from pydantic import TypeAdapter

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.text import files
from nlgraft.text.corpora import (
    Corpus,
    Selected,
    corpus_report,
    load_corpus,
    read_corpus,
    report_json,
    write_corpus,
)
from nlgraft.text.corpus_checks import check_corpus
from nlgraft.text.corpus_config import CorpusConfig, digest, further_tests

config_of = TypeAdapter(CorpusConfig).validate_python


def loaded(settings):
    return load_corpus(config_of(settings))


def corpus_files(directory, **splits):
    """Write files by split and role; give the config."""
    settings = {"corpus": "files"}
    for split, streams in splits.items():
        paths = {}
        for role, lines in streams.items():
            path = directory / f"{split}.{role}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            paths[role] = str(path)
        sources = [path for role, path in paths.items() if role.startswith("source")]
        rest = {role: path for role, path in paths.items() if not role.startswith("source")}
        settings[split] = {"sources": sources, **rest}
    return settings


def small(directory):
    return corpus_files(
        directory,
        train={"source0": ["a dog", "a cat", "a man", "a dog"], "target": ["Hund", "Katze", "Mann", "Hund"]},
        dev={"source0": ["dogs", "the dog"], "target": ["Hunde", "der Hund"]},
        test={"source0": ["a dog", "a man", "a cow"], "target": ["Hund", "Herr", "Kuh"]},
    )


@pytest.mark.parametrize("more", [{}, {"limits": {"train": 3}, "keep": {"words": ["dog", "man"]}}])
@pytest.mark.parametrize("form", ["lines", "gzip", "table"])
def test_text_that_is_kept_in_files_is_that_in_memory(form, more, tmp_path, monkeypatch):
    """Much text goes from file to file, and never as a whole through memory."""
    lines = {
        "source0": ["a dog\r", "a man", "x" * 40, "\u2028 dog"],
        "target": ["Hund", "", "Zeile\x0c", "é" * 9],
    }
    settings = corpus_files(tmp_path, train=lines, dev=lines)
    if form == "gzip":
        for name in ("train.source0", "dev.source0"):
            (tmp_path / name).write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    if form == "table":
        rows = "".join(f'"{a}","{b}"\n' for a, b in zip(*lines.values(), strict=True))
        (tmp_path / "all.csv").write_text(rows, encoding="utf-8")
        columns = {"table": str(tmp_path / "all.csv"), "sources": "1", "target": "2"}
        settings |= {"train": columns, "dev": columns}
    config = config_of({**settings, **more, "max_line_chars": 20})
    in_memory = load_corpus(config)
    monkeypatch.setattr(files, "_MOST_CHARS", 8)
    in_files = load_corpus(config)
    assert isinstance(in_memory["train"].target, list)
    assert isinstance(in_files["train"].target, files.StoredLines)
    assert in_files == in_memory
    assert corpus_report(in_files) == corpus_report(in_memory)
    for name, corpora in (("memory", in_memory), ("files", in_files)):
        write_corpus(corpora["train"], tmp_path / name)
    written = [
        [path.read_bytes() for path in sorted((tmp_path / name).iterdir())] for name in ("memory", "files")
    ]
    assert written[0] == written[1]


def test_stored_lines_are_a_sequence(tmp_path):
    """Whoever reads a corpus may do with its lines what can be done with a list."""
    lines = ["a", "", "b\rc", "é", "a"]
    write_corpus(Corpus([lines], lines[::-1]), tmp_path)
    corpus = read_corpus(tmp_path)
    both = corpus.lines("source 0", "target")
    for stored, expected in ((corpus.sources[0], lines), (both, lines + lines[::-1])):
        assert [*stored] == [*reversed(stored)][::-1] == expected
        for part in (slice(2), slice(1, 4), slice(None, None, -2), slice(-2, None)):
            assert stored[part] == expected[part]
        assert [stored[number] for number in (0, 3, -1, -5)] == [
            expected[number] for number in (0, 3, -1, -5)
        ]
        assert stored.index("é") == 3
        with pytest.raises(IndexError):
            stored[len(expected)]
    assert corpus.sources[0] != lines[:4]
    assert corpus.sources[0] != [*lines[:4], "b"]


def test_further_test_sets_are_splits_and_part_of_the_digest(tmp_path):
    settings = small(tmp_path)
    more = {"further_tests": {"2017": settings["dev"]}, "limits": {"test": 1}}
    config = config_of({**settings, **more})
    corpora = load_corpus(config)
    assert list(corpora) == ["train", "dev", "test", "test_2017"]
    assert corpora["test_2017"].target == ["Hunde"], "the limit of test holds for all test sets"
    assert check_corpus(config).reports["test_2017"].num_examples == 1
    plain = config_of({**settings, "limits": {"test": 1}})
    assert digest(config) == {**digest(plain), "test_2017": digest(plain)["dev"]}
    assert further_tests({"upstream": plain, "downstream": config}) == ("test_2017",)
    with pytest.raises(ValueError, match="give the main test set as test"):
        config_of({**settings, **more, "test": None, "limits": {}})


def test_text_that_is_only_learned_from_needs_no_test_files(tmp_path):
    whole = config_of(small(tmp_path))
    bare = config_of({name: value for name, value in small(tmp_path).items() if name != "test"})
    assert list(load_corpus(bare)) == ["train", "dev"]
    assert load_corpus(bare)["train"] == load_corpus(whole)["train"]
    assert digest(bare) == {**digest(whole), "test": None}
    assert list(check_corpus(bare).reports) == ["train", "dev"]


def test_all_streams_are_read(tmp_path):
    streams = {
        "source0": ["a", "b"],
        "source1": ["c", "d"],
        "target": ["e", "f"],
        "label": ["good", "bad"],
        "document": ["1", "1"],
    }
    corpus = loaded(corpus_files(tmp_path, train=streams, dev=streams, test=streams))["test"]
    assert corpus.sources == [["a", "b"], ["c", "d"]]
    assert (corpus.target, corpus.labels, corpus.documents) == (["e", "f"], ["good", "bad"], ["1", "1"])
    assert corpus.text() == ["a", "b", "c", "d", "e", "f"]


def test_limits_take_the_first_examples_that_the_rule_keeps(tmp_path):
    settings = small(tmp_path)
    settings["keep"] = {"words": ["cat", "man", "dog"], "has": True}
    settings["limits"] = {"train": 3, "test": 1}
    corpora = loaded(settings)
    assert corpora["train"].sources == [["a dog", "a cat", "a man"]]
    assert corpora["train"].selected == Selected(num_read=4, num_kept=4, num_used=3)
    assert corpora["dev"].selected == Selected(num_read=2, num_kept=1, num_used=1)
    assert corpora["test"].target == ["Hund"]


def test_a_rule_that_leaves_nothing_is_refused(tmp_path):
    settings = {**small(tmp_path), "keep": {"words": ["cat"]}}
    with pytest.raises(DataError, match="dev: keep selects none of 2 examples"):
        loaded(settings)


def test_unequal_files_are_named_with_their_counts(tmp_path):
    settings = small(tmp_path)
    (tmp_path / "dev.target").write_text("Hunde\n")
    with pytest.raises(DataError, match=r"dev: files differ .*dev\.source0 2, .*dev\.target 1"):
        loaded(settings)


def test_over_long_lines_are_cut_counted_and_logged(tmp_path, caplog):
    settings = {**small(tmp_path), "max_line_chars": 5}
    corpora = loaded(settings)
    assert corpora["dev"].sources == [["dogs", "the d"]]
    assert corpora["dev"].selected == Selected(2, 2, 2, num_cut=2)
    assert "dev: 2 lines truncated to 5 characters" in caplog.text


def test_sources_keep_their_first_words_and_targets_all(tmp_path):
    settings = corpus_files(
        tmp_path,
        train={"source0": ["one  two three four", "one\ttwo"], "target": ["eins zwei drei", "eins"]},
        dev={"source0": ["one two three"], "target": ["eins"]},
    )
    plain = config_of(settings)
    cut = config_of({**settings, "max_source_words": 2})
    corpora = load_corpus(cut)
    assert corpora["train"].sources == [["one two", "one\ttwo"]]
    assert corpora["train"].target == ["eins zwei drei", "eins"]
    assert [corpora[split].selected.num_cut for split in ("train", "dev")] == [1, 1]
    assert load_corpus(plain)["train"].sources == [["one  two three four", "one\ttwo"]]
    assert digest(plain) != digest(cut)


def test_overlap_of_train_and_test_is_counted(tmp_path):
    """Exact duplicates are counted and reported, not an error."""
    reports = corpus_report(loaded(small(tmp_path)))
    test = reports["test"]
    assert (test.num_in_train, test.num_sources_in_train) == (
        1,
        2,
    )  # "a dog" with its target; "a man" without
    assert (reports["dev"].num_in_train, reports["train"].num_in_train) == (0, 0)
    assert test.num_words == {"source 0": 6, "target": 3}
    assert report_json(reports)["train"]["selected"]["num_read"] == 4


def test_empty_lines_are_counted():
    corpus = Corpus([["a", "", " "]], ["", "b", "c"])
    assert corpus_report({"train": corpus})["train"].num_empty_lines == 3


def test_streams_of_unequal_length_are_refused():
    with pytest.raises(DataError, match="source 0 1, target 2"):
        Corpus([["a"]], ["b", "c"])
    with pytest.raises(DataError, match="at least one source"):
        Corpus([])


@pytest.mark.parametrize(
    "corpus",
    [
        Corpus([["a\u2028b", "c\rd", "", "\ufeffe\x85"]]),
        Corpus([["a"], ["b"]], ["c"], ["good"], ["1"], Selected(9, 5, 1, 2)),
        Corpus([[]], []),
    ],
)
def test_a_written_corpus_comes_back_exactly(tmp_path, corpus):
    write_corpus(corpus, tmp_path / "corpus")
    assert read_corpus(tmp_path / "corpus") == corpus


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(DataError, match="target, line 2: a line feed"):
        write_corpus(Corpus([["a", "b"]], ["c", "d\ne"]), tmp_path)
    with pytest.raises(DataError, match="surrogate"):
        write_corpus(Corpus([["\ud800"]]), tmp_path)


def test_a_damaged_corpus_is_noticed(tmp_path):
    write_corpus(Corpus([["a", "b"]], ["c", "d"]), tmp_path)
    (tmp_path / "target.txt").write_text("c\n")
    with pytest.raises(StoreError, match="target should hold 2 lines"):
        read_corpus(tmp_path)
    (tmp_path / "target.txt").unlink()
    with pytest.raises(StoreError, match="not a corpus"):
        read_corpus(tmp_path)
    with pytest.raises(StoreError, match="not a corpus"):
        read_corpus(tmp_path / "nowhere")


def test_multi30k_is_divided_into_two_domains(multi30k):
    names = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    settings = {"corpus": "files"} | {
        split: {"sources": str(multi30k / f"{name}.en.gz"), "target": str(multi30k / f"{name}.de.gz")}
        for split, name in names.items()
    }
    keep = {"words": ["dog", "dogs", "ball", "water", "beach", "soccer", "horse", "snow"]}
    whole, part, rest = (
        loaded({**settings, **more}) for more in ({}, {"keep": keep}, {"keep": {**keep, "has": False}})
    )
    assert {split: len(corpus) for split, corpus in whole.items()} == {
        "train": 29000,
        "dev": 1014,
        "test": 1000,
    }
    for split, corpus in whole.items():
        assert 0.1 < len(part[split]) / len(corpus) < 0.5
        assert len(part[split]) + len(rest[split]) == len(corpus)
        with gzip.open(multi30k / f"{names[split]}.en.gz", "rt", encoding="utf-8", newline="\n") as file:
            assert corpus.sources[0] == [line.removesuffix("\n") for line in file]
