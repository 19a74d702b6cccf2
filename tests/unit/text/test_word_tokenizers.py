"""Tokenizers of masked language models, and lines that remember their words."""

import os
import sys

import pytest

from nlgraft.basics.errors import DataError
from nlgraft.text import tokenizers
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig, WordTokenizerConfig
from nlgraft.text.tokenizers import (
    TOKENIZER_FILE,
    SentencePiece,
    WordSampler,
    encode_words,
    learn_byte_tokenizer,
    learn_tokenizer,
    sampled_lines,
    train_sentencepiece,
)
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from tests.processes import python

LEARN = """
import sys
from pathlib import Path
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.text.tokenizers import learn_tokenizer
lines = Path("lines").read_text("utf-8").splitlines()
for kind in ("wordpiece", "unigram", "bpe"):
    Path(kind).mkdir()
    learn_tokenizer(lines, WordTokenizerConfig(kind=kind, vocab_size=150), Path(kind))
"""


@pytest.fixture(scope="module")
def lines():
    conlang = ConlangConfig(corpus="conlang", task="monolingual", train=300, dev=1, test=1)
    return load_corpus(conlang)["train"].sources[0]


def test_learning_is_the_same_in_another_process(lines, tmp_path):
    """The library's trainer goes through a hash map; what it learns must not."""
    (tmp_path / "lines").write_text("\n".join(lines), "utf-8")
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    python("-c", LEARN, cwd=tmp_path, env=environment)
    for kind in ("wordpiece", "unigram", "bpe"):
        (tmp_path / "here" / kind).mkdir(parents=True)
        learn_tokenizer(lines, WordTokenizerConfig(kind=kind, vocab_size=150), tmp_path / "here" / kind)
        here, there = (tmp_path / name / kind / "tokenizer.json" for name in ("here", "."))
        assert here.read_bytes() == there.read_bytes()
        assert len(load_vocabulary(there)) == 150


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe", "byte"])
def test_of_many_lines_a_sample_is_learned_from(kind, tmp_path, monkeypatch):
    lines = [f"{word} {word}s number {number}" for number, word in enumerate(["dog", "cat", "cow"] * 40)]

    def learned(name, text):
        (tmp_path / name).mkdir()
        if kind == "byte":
            learn_byte_tokenizer(text, 300, tmp_path / name)
        else:
            learn_tokenizer(text, WordTokenizerConfig(kind=kind, vocab_size=90), tmp_path / name)
        return (tmp_path / name / "tokenizer.json").read_bytes()

    whole = learned("whole", lines)
    monkeypatch.setattr(tokenizers, "MOST_TRAIN_LINES", 30)
    drawn = sampled_lines(lines, len(lines))
    assert len(drawn) == 30
    assert drawn == sorted(drawn, key=lines.index)
    assert learned("sampled", lines) == learned("drawn", drawn) != whole


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_tokens_know_their_words(kind, tmp_path):
    """Whatever is cut, and however many spaces there are, a token belongs to the word it spells."""
    text = ["The boy's red  boat sails.", "a boat", "", "Überall sails the boy's boat again and again"]
    learn_tokenizer(text * 40, WordTokenizerConfig(kind=kind, vocab_size=60, is_lowercase=True), tmp_path)
    vocabulary = load_vocabulary(tmp_path)
    encoded = encode_words(tmp_path / TOKENIZER_FILE, text, 100)
    assert encoded.num_cut == 0
    for row, line in enumerate(text):
        words = line.split()
        assert encoded.word_sizes[row].tolist() == [len(word) for word in words]
        spelled = [""] * len(words)
        for identity, word in zip(encoded.ids[row].tolist(), encoded.words[row].tolist(), strict=True):
            spelled[word] += vocabulary.token(identity).text
        expected = [word.lower() for word in words]
        if kind == "wordpiece":
            expected = [word.replace("ü", "u") for word in expected]
        assert spelled == expected


def test_cut_lines_end_with_a_whole_word(tmp_path):
    learn_tokenizer(["ab cd ef gh"] * 5, WordTokenizerConfig(vocab_size=21), tmp_path)
    assert len(load_vocabulary(tmp_path)) == 21  # single letters only
    encoded = encode_words(tmp_path / TOKENIZER_FILE, ["ab cd ef", "ab", "abcdefgh"], 3)
    assert encoded.num_cut == 2
    assert [encoded.words[row].tolist() for row in range(3)] == [[0, 0], [0, 0], [0, 0, 0]]
    assert encoded.word_sizes[0].tolist() == [2, 2, 2]


def test_white_space_alone_is_a_line_without_tokens(tmp_path):
    """Also where the vocabulary has tokens of white space, which belong to no word then."""
    learn_byte_tokenizer(["ab cd"] * 5, 270, tmp_path)
    encoded = encode_words(tmp_path / TOKENIZER_FILE, ["   ", "", " ab  cd "], 3)
    assert [len(ids) for ids in encoded.ids] == [len(words) for words in encoded.words]
    assert [len(ids) for ids in encoded.ids][:2] == [0, 0]
    assert [words.tolist() for words in encoded.word_sizes] == [[], [], [2, 2]]
    assert encoded.num_cut == 1


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_special_tokens_written_in_text_are_text(kind, tmp_path):
    """Else a line that speaks of [MASK] has a blank that nobody chose."""
    text = ["a [MASK] or <mask> in the text", "[PAD] <pad> [SEP] </s>"]
    learn_tokenizer(text * 20, WordTokenizerConfig(kind=kind, vocab_size=70), tmp_path)
    roles = load_vocabulary(tmp_path).roles
    special = {identity for role, identity in roles.items() if role != "unk"}
    assert len(special) >= 4
    assert special.isdisjoint(encode_words(tmp_path / TOKENIZER_FILE, text).ids.values.tolist())


def test_too_small_a_vocabulary_says_what_it_needs(lines, tmp_path):
    with pytest.raises(DataError, match="raise vocab_size"):
        learn_tokenizer(lines, WordTokenizerConfig(vocab_size=8), tmp_path)
    with pytest.raises(DataError, match="no text"):
        learn_tokenizer([" "], WordTokenizerConfig(), tmp_path)


def test_bpe_is_sentencepieces_own(lines, tmp_path):
    """The same pieces as the model that the merges were taken from."""
    learn_tokenizer(lines, WordTokenizerConfig(kind="bpe", vocab_size=200), tmp_path)
    config = LearnedTokenizerConfig(
        kind="bpe", vocab_size=200, special_tokens=("<mask>",), normalization="identity"
    )
    train_sentencepiece([" ".join(line.split()) for line in lines], config, tmp_path / "own.model", 0)
    reference = SentencePiece(tmp_path / "own.model")
    encoded = encode_words(tmp_path / TOKENIZER_FILE, lines, 1000).ids
    assert [encoded[row].tolist() for row in range(len(lines))] == reference.encode(lines)


def test_dropout_skips_merges_and_nothing_else(lines, tmp_path):
    learn_tokenizer(lines, WordTokenizerConfig(kind="bpe", vocab_size=200), tmp_path)
    path = tmp_path / TOKENIZER_FILE
    plain = encode_words(path, lines, 1000)
    hardly = WordSampler(path, 1e-9).encode(lines, 1000, seed=1)
    assert hardly.ids.values.tolist() == plain.ids.values.tolist()
    assert hardly.words.values.tolist() == plain.words.values.tolist()
    assert hardly.word_sizes.values.tolist() == plain.word_sizes.values.tolist()
    vocabulary = load_vocabulary(tmp_path)
    sampler = WordSampler(path, 0.3)
    first, again, other = (sampler.encode(lines, 1000, seed=seed) for seed in (1, 1, 2))
    assert first.ids.values.tolist() == again.ids.values.tolist() != other.ids.values.tolist()
    assert len(first.ids.values) > len(plain.ids.values)
    for row, line in enumerate(lines[:20]):
        spelled = [""] * len(line.split())
        for identity, word in zip(first.ids[row].tolist(), first.words[row].tolist(), strict=True):
            spelled[word] += vocabulary.token(identity).text
        assert spelled == line.split()
    cut = sampler.encode(lines, 12, seed=1)
    assert cut.num_cut > 0
    assert max(cut.ids.lengths) <= 12


def test_dropout_belongs_to_bpe():
    with pytest.raises(ValueError, match="unigram, which has no merges"):
        WordTokenizerConfig(kind="unigram", dropout=0.1)
