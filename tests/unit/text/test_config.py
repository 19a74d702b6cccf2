import hashlib
from typing import Annotated

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from nlgraft.basics.errors import DataError
from nlgraft.study.reading.knobs import descriptions
from nlgraft.text.corpus_config import (
    ConlangConfig,
    CorpusConfig,
    FilesConfig,
    SacreBleuConfig,
    WordRule,
    digest,
    requires,
    role_problem,
    word_tokens,
)
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig

config_of = TypeAdapter(CorpusConfig).validate_python


def files(tmp_path, **more):
    settings = {"corpus": "files", **more}
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.en").write_text("a dog\na man\n")
        (tmp_path / f"{split}.de").write_text("ein Hund\nein Mann\n")
        settings[split] = {"sources": str(tmp_path / f"{split}.en"), "target": str(tmp_path / f"{split}.de")}
    return settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dev": {"sources": "x"}}, "dev has source 0 but train has source 0, target"),
        ({"keep": {"words": ["Dog"]}}, "can never match"),
        ({"keep": {"words": ["hot dog"]}}, "can never match"),
        ({"keep": {"words": []}}, "at least 1"),
        ({"limits": {"train": 0}}, "greater than or equal to 1"),
        ({"test": None, "limits": {"test": 5}}, "there are no files of a test split"),
        ({"limit": 3}, "Extra inputs"),
    ],
)
def test_contradictory_files_are_refused(tmp_path, change, message):
    with pytest.raises(ValidationError, match=message):
        config_of({**files(tmp_path), **change})


def test_a_language_belongs_to_tasks_of_one_language():
    assert ConlangConfig(corpus="conlang", task="monolingual", language="second").language == "second"
    with pytest.raises(ValidationError, match="which has its own"):
        ConlangConfig(corpus="conlang", task="translation", language="second")


def test_a_corpus_knows_its_roles_without_its_text(tmp_path):
    hub = {"corpus": "huggingface", "path": "x", "revision": "main", "sources": ["a", "b"], "label": "c"}
    assert config_of(hub).roles == ("source 0", "source 1", "label")
    assert config_of(files(tmp_path)).roles == ("source 0", "target")
    assert config_of({"corpus": "conlang", "task": "monolingual"}).roles == ("source 0",)


class _Pairs(BaseModel):
    text: Annotated[CorpusConfig, requires("source 0", "target")]


def test_a_config_says_which_roles_its_corpus_needs(tmp_path):
    assert _Pairs.model_validate({"text": files(tmp_path)}).text.roles == ("source 0", "target")
    with pytest.raises(ValidationError, match="needs a test split"):
        _Pairs.model_validate({"text": {**files(tmp_path), "test": None}})
    message = "needs source 0 and target; the conlang corpus of task monolingual has source 0"
    with pytest.raises(ValidationError, match=message) as caught:
        _Pairs.model_validate({"text": {"corpus": "conlang", "task": "monolingual"}})
    assert caught.value.errors()[0]["loc"][:1] == ("text",)


def test_more_roles_than_needed_are_refused_only_when_they_must_be_exact():
    corpus = ConlangConfig(corpus="conlang", task="translation")
    assert role_problem(corpus, "source 0") is None
    message = "needs exactly source 0; the conlang corpus of task translation has source 0, target"
    assert role_problem(corpus, "source 0", is_exact=True) == message


def test_sacrebleu_takes_one_source_and_a_target():
    settings = {"corpus": "sacrebleu", "langpair": "en-de", "dev": "wmt13", "test": "wmt14"}
    with pytest.raises(ValidationError, match=r"train has source 0; .* one source and a target"):
        SacreBleuConfig.model_validate({**settings, "train": {"sources": "x"}})


def test_words_of_a_line_are_lower_cased_runs_of_letters_and_digits():
    assert word_tokens("Two DOGS, one dog's ball_game—3rd Straße!") == [
        *["two", "dogs", "one", "dog", "s", "ball", "game", "3rd", "straße"]
    ]


def test_a_rule_keeps_whole_words_and_its_complement():
    rule = WordRule(words=("dog", "cat"))
    rest = WordRule(words=("dog", "cat"), has=False)
    lines = ("A Dog.", "dogs", "", "the cat-house")
    assert [rule.keeps(line) for line in lines] == [True, False, False, True]
    assert [rest.keeps(line) for line in lines] == [False, True, True, False]


def test_a_digest_follows_bytes_and_options_not_places(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    first, other = config_of(files(here)), config_of(files(there))
    assert digest(first) == digest(other)
    assert digest(first)["train"] == {
        "source 0": hashlib.sha256(b"a dog\na man\n").hexdigest(),
        "target": hashlib.sha256(b"ein Hund\nein Mann\n").hexdigest(),
    }
    assert digest(first) != digest(config_of(files(there, limits={"train": 1})))
    assert digest(first) != digest(config_of(files(there, keep={"words": ["dog"]})))
    (there / "dev.de").write_text("ein Hund\nein Weib\n")
    assert digest(first) != digest(other)


def test_a_digest_of_a_missing_file_says_what_is_beside_it(tmp_path):
    config = config_of(files(tmp_path))
    (tmp_path / "test.de").unlink()
    with pytest.raises(
        DataError, match=r"test\.de: no such .*; .* holds dev\.de, dev\.en.*in a study start at"
    ):
        digest(config)


def test_a_digest_of_constructed_text_follows_every_field():
    base = ConlangConfig(corpus="conlang")
    changes = {"task": "multi_source", "domain": "b", "train": 3, "dev": 3, "test": 3}
    digests = [digest(base.model_copy(update={name: value})) for name, value in changes.items()]
    assert all(changed != digest(base) for changed in digests)
    assert digest(base) == digest(ConlangConfig(corpus="conlang"))


def test_a_digest_of_a_test_set_holds_its_published_checksum(tmp_path):
    settings = {
        **files(tmp_path),
        "corpus": "sacrebleu",
        "langpair": "en-de",
        "dev": "wmt13",
        "test": "wmt14/full",
    }
    assert digest(config_of(settings))["test"] == {
        "test_set": "wmt14/full",
        "md5": ["a8cd784e006feb32ac6f3d9ec7eb389a"],  # as sacreBLEU 2.6 publishes it
    }
    with pytest.raises(DataError, match="sacreBLEU knows no such test set"):
        digest(config_of({**settings, "dev": "wmt1066"}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"special_tokens": ["<s>"]}, "none of <pad>"),
        ({"special_tokens": ["<en>", "<en>"]}, "distinct"),
        ({"vocab_size": 6, "special_tokens": ["<en>", "<de>"]}, "give more than 6"),
        ({"kind": "wordpiece"}, "unigram"),
    ],
)
def test_impossible_tokenizers_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        LearnedTokenizerConfig.model_validate(settings)


def test_every_field_says_what_it_means():
    for config in (ConlangConfig, FilesConfig, LearnedTokenizerConfig, WordRule):
        described = descriptions(config)
        for name in config.model_fields:
            assert described.get(name) or name == "corpus", f"{config.__name__}.{name}"
