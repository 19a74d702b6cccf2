"""Mistakes in text that are found in seconds."""

import gzip

import pytest
from pydantic import TypeAdapter

from nlgraft.basics.errors import DataError
from nlgraft.text.corpus_checks import (
    check_corpus,
    normalization_warning,
    round_trip_bleu,
    round_trip_warning,
    vocabulary_warning,
)
from nlgraft.text.corpus_config import CorpusConfig
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig
from nlgraft.text.tokenizers import SentencePiece, train_sentencepiece

config_of = TypeAdapter(CorpusConfig).validate_python


@pytest.fixture
def corpus(tmp_path):
    """A corpus of three examples in each split, no two alike."""
    for split in ("train", "dev", "test"):
        for side in ("en", "de"):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{side} {split} {n}\n" for n in range(3)))
    return tmp_path


def config(directory, suffix=""):
    document = {
        split: {
            side: str(directory / f"{split}.{code}{suffix}")
            for side, code in (("sources", "en"), ("target", "de"))
        }
        for split in ("train", "dev", "test")
    }
    return config_of({"corpus": "files", **document})


def test_a_sound_corpus_is_counted_without_a_warning(corpus):
    checked = check_corpus(config(corpus))
    assert checked.warnings == ()
    assert {split: report.num_examples for split, report in checked.reports.items()} == {
        "train": 3,
        "dev": 3,
        "test": 3,
    }


def test_all_splits_with_problems_are_listed_at_once(corpus):
    (corpus / "train.de").unlink()
    (corpus / "dev.de").write_text("one line\n")
    (corpus / "test.en").write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError) as caught:
        check_corpus(config(corpus))
    train, dev, test = str(caught.value).split("\n")
    assert "train.de: no such file" in train
    assert "dev: files differ in their number of lines" in dev
    assert "test.en, line 1: not UTF-8" in test


def test_plain_text_named_gz_is_refused(corpus):
    for path in [*corpus.iterdir()]:
        (corpus / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert check_corpus(config(corpus, ".gz")).warnings == ()
    (corpus / "dev.en.gz").write_bytes((corpus / "dev.en").read_bytes())
    with pytest.raises(DataError, match=r"dev\.en\.gz: named \.gz but not a gzip file; rename it"):
        check_corpus(config(corpus, ".gz"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.de", "\n" * 3, "train: all 3 examples have no text in target"),
        ("dev.en", " \t\n\u200b\n\u3000\n", "dev: all 3 examples have no text in sources"),
        ("test.de", " \n" * 3, "test: all 3 examples have no text in target"),
    ],
)
def test_text_without_a_word_is_refused(corpus, name, text, message):
    (corpus / name).write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        check_corpus(config(corpus))


@pytest.mark.parametrize("name", ["train.de", "train.en"])
def test_a_side_whose_lines_are_all_alike_is_refused(corpus, name):
    """Nothing about the other side can be learned from it."""
    for side in ("en", "de"):
        (corpus / f"train.{side}").write_text("".join(f"{side} {n}\n" for n in range(50)))
    (corpus / name).write_text("the same\n" * 50)
    with pytest.raises(DataError, match=r"train: all 50 examples have the same .*'the same'"):
        check_corpus(config(corpus))


def test_empty_targets_are_named(corpus):
    (corpus / "train.de").write_text("a\n\n  \n")
    assert check_corpus(config(corpus)).warnings == (
        "train: 2 of 3 examples have an empty target (example 2, 3); remove them",
    )


def test_test_text_in_the_training_text_is_counted(corpus):
    for side in ("en", "de"):
        lines = (corpus / f"train.{side}").read_text().splitlines()
        (corpus / f"test.{side}").write_text("\n".join([lines[0], f"new {side}", "x"]) + "\n")
    (corpus / "test.de").write_text("\n".join([lines[0], "new de", "x"]) + "\n")
    (corpus / "test.en").write_text("en train 0\nen train 1\nx\n")
    (warning,) = check_corpus(config(corpus)).overlaps
    assert warning.startswith("test: 1 of 3 examples are also in train, and the sources of 2;")


def test_text_from_elsewhere_is_not_fetched():
    constructed = config_of({"corpus": "conlang", "train": 10**9})
    assert check_corpus(constructed).reports == {}


def test_more_pieces_than_words_are_warned_of():
    lines = ["a man walks", "a man runs"]  # 4 words, 9 characters, 4 special pieces
    assert vocabulary_warning(LearnedTokenizerConfig(vocab_size=17), lines) is None
    warning = vocabulary_warning(LearnedTokenizerConfig(vocab_size=18), lines)
    assert "vocab_size is 18, but the training text has only 4 distinct words and 9 characters" in warning


CHINESE = ["我们在１０月去北京，天气很好。", "他说：“这是一个新的开始！”", "一只黑色的狗（很大）在草地上跑。"]


def test_a_normalisation_that_changes_references_is_warned_of():
    """Full-width commas, parentheses and digits become ASCII."""
    assert normalization_warning("identity", CHINESE) is None
    assert normalization_warning("nmt_nfkc", ["A dog, two cats."]) is None
    warning = normalization_warning("nmt_nfkc", CHINESE)
    assert "normalization nmt_nfkc changes the target text (BLEU 6" in warning
    assert warning.endswith("set normalization: identity")


@pytest.mark.parametrize(("normalization", "is_lost"), [("nmt_nfkc", True), ("identity", False)])
def test_a_tokenizer_that_loses_text_is_warned_of(normalization, is_lost, tmp_path):
    train_sentencepiece(
        CHINESE, LearnedTokenizerConfig(vocab_size=80, normalization=normalization), tmp_path / "m", seed=0
    )
    tokenizer = SentencePiece(tmp_path / "m")
    assert tokenizer.normalization == normalization
    assert (round_trip_warning(tokenizer, CHINESE) is not None) == is_lost
    # the normalisation is all that is lost
    assert tokenizer.decode(tokenizer.encode(CHINESE)) == tokenizer.normalised(CHINESE)


def test_text_that_comes_back_whole_loses_nothing_however_short():
    """BLEU itself is below 100 for lines that have no four characters."""
    assert round_trip_bleu(["a"], ["a"]) == 100.0
    assert round_trip_bleu(["a man"], ["a dog"]) < 100.0
