import math
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece
from babel import Locale

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.text import tokenizers
from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig
from nlgraft.text.tokenizers import (
    BOS,
    EOS,
    PAD,
    UNK,
    SentencePiece,
    required_pieces,
    train_sentencepiece,
)
from tests.processes import python

LINES = generate(ConlangConfig(corpus="conlang", train=400, dev=1, test=1), "train")["target"]


def trained(directory, lines=LINES, seed=1, **settings):
    path = Path(directory) / "text.model"
    train_sentencepiece(
        lines, LearnedTokenizerConfig.model_validate({"vocab_size": 300, **settings}), path, seed
    )
    return SentencePiece(path)


@pytest.fixture(scope="module")
def unigram(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("unigram"))


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("bpe"), kind="bpe")


def test_special_pieces_have_their_ids(unigram, bpe):
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    for model in (unigram, bpe):
        assert model.pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
        assert model.vocab_size == len(model.pieces) == 300


def test_text_comes_back(unigram, bpe):
    for model in (unigram, bpe):
        ids = model.encode(LINES)
        assert model.decode(ids) == LINES
        assert model.decode([[BOS, *ids[0], EOS, PAD]]) == LINES[:1]
        assert not any(i in (PAD, UNK, BOS, EOS) for row in ids for i in row)


def test_nothing_is_nothing(unigram):
    assert unigram.encode([]) == []
    assert unigram.encode([""]) == [[]]
    assert unigram.decode([[], [UNK]]) == ["", " \u2047 "]


def test_special_tokens_follow_and_text_never_makes_them(tmp_path):
    model = trained(tmp_path, special_tokens=["<en>", "[MASK]", "a,b"])
    assert model.pieces[4:7] == ["<en>", "[MASK]", "a,b"]
    assert model.id("[MASK]") == 5
    text, line = model.encode(["one [MASK] two", LINES[0]])
    assert 5 not in text
    assert model.decode([[4, *line, 5]]) == LINES[:1]
    with pytest.raises(DataError, match="no piece '<de>' among 300"):
        model.id("<de>")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_small_corpus_gives_the_pieces_it_has(tmp_path, kind):
    model = trained(tmp_path, lines=["hello world", "foo bar", "x"], kind=kind, vocab_size=1000)
    assert 5 < model.vocab_size < 100
    assert model.decode(model.encode(["foo world"])) == ["foo world"]


def test_a_vocabulary_smaller_than_the_characters_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"vocab_size is 10, but the characters .* need \d+; raise"):
        trained(tmp_path, vocab_size=10)


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_no_text_is_refused(tmp_path, lines):
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        trained(tmp_path, lines=lines)


def test_lines_that_sentencepiece_would_drop_are_learned_from(tmp_path):
    model = trained(tmp_path, lines=["zzz\u2585 " + "qy " * 3000, "abc"], vocab_size=50)
    assert UNK not in model.encode(["zqy abc"])[0]


def test_another_process_learns_and_samples_the_same(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from nlgraft.text.tokenizer_config import LearnedTokenizerConfig\n"
        "from nlgraft.text.tokenizers import SentencePiece, train_sentencepiece\n"
        "lines = sys.stdin.read().split('\\n')[:-1]\n"
        "for kind in ('unigram', 'bpe'):\n"
        "    path = Path(sys.argv[1]) / kind\n"
        "    config = LearnedTokenizerConfig(vocab_size=300, kind=kind, max_train_lines=300)\n"
        "    train_sentencepiece(lines, config, path, 1)\n"
        "    print(SentencePiece(path).encode(lines[:20], sample_alpha=0.1, seed=5))"
    )
    text = "".join(f"{line}\n" for line in LINES)
    ran = python("-c", code, tmp_path, input=text)
    for kind, sampled in zip(("unigram", "bpe"), ran.stdout.splitlines(), strict=True):
        here = trained(tmp_path / f"{kind}-here", kind=kind, max_train_lines=300)
        assert (tmp_path / kind).read_bytes() == here.path.read_bytes()
        assert sampled == str(here.encode(LINES[:20], sample_alpha=0.1, seed=5))


def test_of_many_lines_a_sample_is_learned_from_unless_more_are_asked_for(tmp_path, monkeypatch):
    """Up to the bound nothing is drawn, so that tokenizers of most texts stay what they were."""
    whole = trained(tmp_path / "whole").path.read_bytes()
    monkeypatch.setattr(tokenizers, "MOST_TRAIN_LINES", len(LINES))
    assert trained(tmp_path / "just").path.read_bytes() == whole
    monkeypatch.setattr(tokenizers, "MOST_TRAIN_LINES", 300)
    sampled = trained(tmp_path / "sampled").path.read_bytes()
    assert sampled == trained(tmp_path / "named", max_train_lines=300).path.read_bytes() != whole
    assert trained(tmp_path / "more", max_train_lines=len(LINES)).path.read_bytes() == whole


def test_the_seed_draws_the_training_lines(tmp_path):
    first, same, other = (
        trained(tmp_path / str(n), seed=seed, max_train_lines=100) for n, seed in enumerate((1, 1, 2))
    )
    assert first.pieces == same.pieces
    assert first.pieces != other.pieces


def test_sampling_is_random_text_preserving_and_seeded(unigram, bpe):
    for model in (unigram, bpe):
        best = model.encode(LINES)
        sampled = model.encode(LINES, sample_alpha=0.1, seed=1)
        assert sampled != best
        assert model.decode(sampled) == LINES
        assert model.encode(LINES, sample_alpha=0.1, seed=2) != sampled
        model.encode(LINES[:7], sample_alpha=0.3, seed=9)
        assert model.encode(LINES, sample_alpha=0.1, seed=1) == sampled
        assert sum(map(len, sampled)) > sum(map(len, best))


@pytest.mark.parametrize(("kind", "alpha"), [("unigram", 0.1), ("bpe", 0.5)])
def test_sampling_draws_as_sentencepiece_does(tmp_path, kind, alpha):
    """Against sentencepiece's own sampler: shares of 4,000 draws agree within 5 standard errors."""
    words = [*LINES[0].split()[:2], "ab\u2603c"]
    model = trained(tmp_path, lines=[*LINES, *words[:1] * 50], kind=kind)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.path.read_bytes())
    for word in words:
        counts = Counter(map(tuple, model.encode([word] * 4000, sample_alpha=alpha, seed=1)))
        drawn = reference.encode([word] * 4000, enable_sampling=True, alpha=alpha, nbest_size=-1)
        for ids, count in Counter(map(tuple, drawn)).most_common(5):
            share = count / 4000
            tolerance = 5 * math.sqrt(2 * share * (1 - share) / 4000)
            assert abs(counts[ids] / 4000 - share) <= tolerance, (word, ids)


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "x").write_text("text")
    for name in ("x", "nowhere"):
        with pytest.raises(StoreError, match="not a SentencePiece model"):
            SentencePiece(tmp_path / name)


def test_a_model_with_other_special_ids_is_refused(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=str(tmp_path / "x"), vocab_size=300, minloglevel=2
    )
    with pytest.raises(StoreError, match="train it with nlgraft"):
        SentencePiece(tmp_path / "x.model")


def test_a_domain_vocabulary_shortens_its_domain(tmp_path, unigram):
    other = generate(ConlangConfig(corpus="conlang", domain="b", train=400, dev=1, test=1), "train")["target"]
    of_domain, general = (sum(map(len, model.encode(other))) for model in (trained(tmp_path, other), unigram))
    assert of_domain < general


SCRIPTS = ("ja", "ko", "th", "ar", "km")


def names(language):
    """Names of languages, territories and currencies."""
    locale = Locale(language)
    return [
        str(name)
        for table in (locale.languages, locale.territories, locale.currencies)
        for name in table.values()
    ]


@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "bpe", "normalization": "identity"},
        {"character_coverage": 0.98, "has_byte_fallback": True},
    ],
)
def test_the_required_pieces_are_just_enough_for_sentencepiece(tmp_path, language, settings):
    lines = [*names(language), "\U0001f600 \u2460 \ufb01 e\u0301"]
    required = required_pieces(lines, LearnedTokenizerConfig(**settings))
    with pytest.raises(DataError, match=f"need {required}; raise vocab_size"):
        trained(tmp_path, lines, vocab_size=required - 1, **settings)
    assert trained(tmp_path, lines, vocab_size=required + 20, **settings).vocab_size >= required


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_bytes_spell_what_the_vocabulary_lacks(tmp_path, kind):
    lines = names("zh")
    settings = {"kind": kind, "vocab_size": 900, "character_coverage": 0.98}
    plain, with_bytes = (
        trained(tmp_path / str(has_bytes), lines, has_byte_fallback=has_bytes, **settings)
        for has_bytes in (False, True)
    )
    unseen = "\u9f98 \U0001f600"
    text = [*lines[:50], unseen]
    sampled = [with_bytes.encode(text, sample_alpha=0.3, seed=seed) for seed in range(3)]
    for ids in (with_bytes.encode(text), *sampled):
        assert not any(UNK in line for line in ids)
        assert with_bytes.decode(ids) == with_bytes.normalised(text)
    for alpha in (None, 0.3):
        assert UNK in plain.encode([unseen], sample_alpha=alpha)[0]
