"""A first attempt at a study of one's own: everything that is wrong is told in one go, data included."""

import json
import sys
from pathlib import Path

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.study.public import Study
from tests.commands import nlgraft
from tests.contract.toy_arms import study_of

WORDS = {
    "en": ["the", "of", "and", "to", "in", "is", "dog", "house", "runs", "big", "small", "man"],
    "de": ["der", "die", "und", "zu", "im", "ist", "hund", "haus", "rennt", "gross", "klein", "mann"],
    "fr": ["le", "de", "et", "a", "dans", "est", "chien", "maison", "court", "grand", "petit", "homme"],
}
SPLITS = {"train": 60, "dev": 12, "test": 12}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, words in WORDS.items():
        for offset, (split, number) in enumerate(SPLITS.items()):
            lines = [" ".join(words[(n * k + offset) % 12] for k in range(1, 8)) for n in range(number)]
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n", "utf-8")
    return tmp_path


def files(*sources, target):
    return {
        "corpus": "files",
        **{
            split: {"sources": [f"{split}.{source}" for source in sources], "target": f"{split}.{target}"}
            for split in SPLITS
        },
    }


PAIRS = files("en", target="de")
TRIPLES = files("en", "fr", target="de")


def study(system, data, base):
    return study_of(system, {"data": data, **base}, "dev/bleu")


def problems_of(document):
    with pytest.raises(StudyError) as caught:
        Study.from_dict(document)
    return str(caught.value)


def test_a_wrong_key_value_and_consistency_are_told_together(place):
    data = {"task": TRIPLES, "languages": ["en", "fr", "de"]}
    base = {"model": {"preset": "tinny", "dropout": 2}, "tokenizer": {"size": 9}, "upstream": {}}
    text = problems_of(study("multi_source", data, base))
    assert "unknown key 'size'" in text
    assert "Did you mean 'tiny'?" in text
    assert "expected float >= 0, < 1, got 2" in text
    assert "read is [0, 1] without multi_source" in text
    assert "upstream learns from data.text, which lacks de, en, fr" in text


def test_the_rule_of_a_part_hides_no_rule_of_the_whole(place):
    data = {"task": TRIPLES, "languages": ["en", "de"]}
    text = problems_of(study("multi_source", data, {}))
    assert "the task has 2 sources and a target" in text
    assert "single_source and multi_source are both null: nothing is finetuned" in text


def test_a_rule_about_a_refused_value_is_not_made_up(place):
    """`multi_source` counts as null where its value is no mapping; that it is missing would be wrong."""
    data = {"task": TRIPLES, "languages": ["en", "fr", "de"]}
    text = problems_of(study("multi_source", data, {"multi_source": 5}))
    assert "base.multi_source: expected" in text
    assert "without multi_source" not in text
    assert "both null" not in text


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"peak_lr": "fast"}, ".peak_lr: expected float > 0, got the text 'fast'"),
        ({"initial_lr": 1}, ": initial_lr=1.0 exceeds peak_lr="),
    ],
)
def test_a_refused_value_does_not_undo_what_its_neighbours_imply(place, settings, problem):
    """Batches in characters have none in tokens; `independent` inherits them from `downstream.train`."""
    data = {"upstream": PAIRS, "downstream": PAIRS}
    train = {"batch_characters": 4000, **settings}
    text = problems_of(study("embedding_transfer", data, {"downstream": {"train": train}}))
    assert f"base.downstream.train{problem}" in text
    assert "1 problem" in text
    assert "batch_tokens" not in text


def test_a_system_without_its_package_hides_nothing_else(place):
    document = study("multi_source", {"task": PAIRS, "languages": ["en", "de"]}, {})
    text = problems_of({**document, "system": "multi_source", "base": {"trian": {}}})
    assert "Did you mean 'trainables.multi_source'?" in text
    assert "unknown key 'trian'" in text


def validated(document, code=0):
    Path("study.yaml").write_text(json.dumps(document), "utf-8")
    return nlgraft("validate", "study.yaml", code=code)


def transfer(upstream, downstream):
    sizes = {side: {"vocab_size": 60} for side in ("upstream", "downstream")}
    return study(
        "embedding_transfer", {"upstream": upstream, "downstream": downstream}, {"tokenizers": sizes}
    )


def test_validate_names_the_problems_of_all_files_of_all_corpora(place):
    upstream, downstream = files("en", target="de"), files("en", target="de")
    upstream["dev"]["target"] = "none.de"
    upstream["test"] = {"sources": "no.en", "target": "no.de"}
    downstream["train"]["target"] = "dev.de"
    done = validated(transfer(upstream, downstream), code=2)
    for part in ("none.de: no such file", "no.en: no such file", "no.de: no such file"):
        assert f"{place / part}" in done.output
    assert "data.downstream: train: files differ in their number of lines" in done.output


def test_validate_tells_languages_that_are_the_other_way_round(place):
    right = validated(transfer(PAIRS, PAIRS))
    assert "looks like the target" not in right.output
    wrong = validated(transfer(PAIRS, files("de", target="en")))
    assert "downstream_corpus: train: its source 0 looks like the target of upstream_corpus" in wrong.output
    assert "downstream_corpus: dev" not in wrong.output  # the corpus agrees with itself
    mixed = files("en", target="de")
    mixed["dev"] = {"sources": "dev.de", "target": "dev.en"}
    done = validated(transfer(PAIRS, mixed))
    assert "downstream_corpus: dev: its source 0 looks like the target of downstream_corpus" in done.output


def test_validate_tells_text_that_is_given_twice(place):
    same = files("en", target="en")
    same["test"] = same["dev"]
    for part in ("train: source 0 and target are equal in", "are also in dev"):
        assert part in validated(transfer(PAIRS, same)).output
    other = validated(transfer(PAIRS, files("fr", target="de")))
    assert "looks like the target" not in other.output  # another language is no swap


def test_text_of_the_hub_needs_its_package_before_anything_starts(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    hub = {"corpus": "huggingface", "path": "x", "revision": "main", "sources": ["en"], "target": "de"}
    done = validated(transfer(hub, {**hub, "path": "y"}), code=2)
    assert "pip install 'nlgraft[datasets]'" in done.output
    assert "upstream_corpus: " in done.output
    assert "downstream_corpus: " in done.output
