"""Vocabularies read from tokenizers: kinds, roles, marks, and segmentations equal to the libraries' own."""

import json
import random

import pytest
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.loading import load_vocabulary, wordpiece_json
from nlgraft.vocab.tokenizers.tokenizer_json import read_tokenizer_json
from nlgraft.vocab.tokenizers.vocabulary import BYTE_LEVEL, SENTENCEPIECE, Kind, Tok
from tests.tiny_checkpoints import bert_tokenizer, gpt2_tokenizer, train_spm, unigram_tokenizer

rng = random.Random(0)
STEMS = ["".join(rng.choices("abdeiklmnorstuzé", k=rng.randint(2, 5))) for _ in range(60)]
WORDS = ["".join(rng.choices(STEMS, k=rng.randint(1, 3))) for _ in range(400)]
LINES = [" ".join(rng.choices(WORDS, k=8)) for _ in range(800)]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def sentencepiece_model(request, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("sp") / request.param
    options = {"model_type": request.param, "byte_fallback": True, "user_defined_symbols": ["<mask>"]}
    return train_spm(prefix, LINES, size=600, **options)


def test_sentencepiece_segments_words_as_the_library_does(sentencepiece_model):
    vocabulary = load_vocabulary(sentencepiece_model)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    for word in WORDS:
        pieces = vocabulary.segment(vocabulary.normalised(Tok(word.encode(), starts_word=True)))
        assert [piece.id for piece in pieces] == processor.encode(word)


def test_sentencepiece_kinds_and_roles(sentencepiece_model):
    vocabulary = load_vocabulary(sentencepiece_model)
    assert dict(vocabulary.roles) == {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "mask": 4}
    assert [vocabulary.tokens[i].kind for i in range(5)] == [Kind.SPECIAL] * 5
    byte = vocabulary.ids_by_surface["<0xE2>"]
    assert vocabulary.tokens[byte] == Tok(b"\xe2", None, None, Kind.BYTE)
    assert vocabulary.find(Tok(b"\xe2", False)) == byte
    assert vocabulary.marking == SENTENCEPIECE
    assert not vocabulary.is_normal[:5].any()


def test_without_the_whole_word_there_is_a_proper_segmentation(sentencepiece_model):
    vocabulary = load_vocabulary(sentencepiece_model)
    whole = [i for i, tok in enumerate(vocabulary.tokens) if vocabulary.is_normal[i] and len(tok.core) > 3]
    for identity in whole[:100]:
        tok = vocabulary.tokens[identity]
        assert [piece.id for piece in vocabulary.segment(tok)] == [identity]
        pieces = vocabulary.segment(tok, is_whole_allowed=False)
        assert len(pieces) > 1
        assert b"".join(vocabulary.tokens[p.id].core for p in pieces) == tok.core
        assert [(p.start, p.end) for p in pieces if p.start == 0 or p.end == len(tok.core)] != []


def end_of_word_tokenizer(directory, lines):
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.mark.parametrize(
    ("write", "before"),
    [(bert_tokenizer, ""), (gpt2_tokenizer, " "), (end_of_word_tokenizer, ""), (unigram_tokenizer, "")],
)
def test_tokenizer_json_segments_words_as_the_library_does(write, before, tmp_path):
    write(tmp_path, LINES)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    vocabulary = read_tokenizer_json(json.loads(tokenizer.to_str()))
    assert len(vocabulary) == tokenizer.get_vocab_size()
    for word in WORDS[:200]:
        tok = vocabulary.normalised(Tok(word.encode(), starts_word=True, ends_word=True))
        expected = tokenizer.encode(before + word, add_special_tokens=False).ids
        assert [piece.id for piece in vocabulary.segment(tok)] == expected


def test_tokenizer_json_tells_marks_kinds_and_gaps(tmp_path):
    gpt2_tokenizer(tmp_path, LINES)
    data = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    size = len(data["model"]["vocab"])
    data["added_tokens"].append({"id": size + 5, "content": "<extra>", "special": True})
    vocabulary = read_tokenizer_json(data, specials={"eos_token": {"content": "<|endoftext|>"}})
    assert vocabulary.marking == BYTE_LEVEL
    assert vocabulary.gaps == list(range(size, size + 5))
    assert dict(vocabulary.roles) == {"eos": 0}
    assert vocabulary.tokens[size + 5].kind is Kind.SPECIAL
    uncased = read_tokenizer_json(wordpiece_json(["[UNK]", "a", "##e"], tmp_path))
    assert uncased.normalised(Tok("Éa".encode(), True)).core == b"ea"


@pytest.mark.parametrize(
    ("normalizer", "text", "expected"),
    [
        ({"type": "BertNormalizer"}, "Ca\x00f\u0301é\ufffd", "cafe"),
        (normalizers.BertNormalizer(), "a\xa0中\t😀", "a 中 😀"),
        (normalizers.Sequence([normalizers.Replace("ß", "ss"), normalizers.NFKC()]), "Fuß①", "Fuss1"),
        (normalizers.Nmt(), "a\x01b", "ab"),
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), "a b", "a b"),
    ],
)
def test_words_are_normalised_as_the_tokenizer_says(normalizer, text, expected):
    step = normalizer if isinstance(normalizer, dict) else json.loads(normalizer.__getstate__())
    model = {"type": "BPE", "vocab": {"▁a": 0, "b": 1}, "merges": []}
    document = {"normalizer": step, "pre_tokenizer": {"type": "Metaspace"}, "model": model}
    assert read_tokenizer_json(document).normalise(text) == expected


def test_files_are_recognised_by_what_they_hold(tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "vocab.txt").write_text("[PAD]\n[UNK]\n[unused0]\nmotor\n##cycle\n")
    vocabulary = load_vocabulary(tmp_path / "bert")
    assert vocabulary.roles == {"pad": 0, "unk": 1}
    assert vocabulary.tokens[2].kind is Kind.UNUSED
    assert [p.id for p in vocabulary.segment(Tok(b"motorcycle", True))] == [3, 4]
    assert vocabulary.normalise("Motor") == "motor"
    with pytest.raises(DataError, match=r"no tokenizer found"):
        load_vocabulary(tmp_path)
    with pytest.raises(DataError, match=r"no such file"):
        load_vocabulary(tmp_path / "missing.json")


def test_unknown_word_starts_are_read_both_ways():
    vocabulary = read_tokenizer_json({"model": {"type": "WordPiece", "vocab": {"a": 0, "##ab": 1, "##b": 2}}})
    assert [p.id for p in vocabulary.segment(Tok(b"ab"))] == [1]
    assert [p.id for p in vocabulary.segment(Tok(b"a"))] == [0]


def test_a_tokenizer_without_subwords_is_refused():
    with pytest.raises(DataError, match="WordLevel"):
        read_tokenizer_json({"model": {"type": "WordLevel", "vocab": {"a": 0}}})
    with pytest.raises(DataError, match=r"not a tokenizer\.json"):
        read_tokenizer_json({"version": "1.0"})


PUNCTUATED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "don", "##'", "##t", "t", "'", ",", "##,", "..."]
PUNCTUATED += [".", "日", "##日", "##本", "本", "a", "##a"]


@pytest.fixture
def punctuated(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in PUNCTUATED), "utf-8")
    return load_vocabulary(tmp_path), tokenizers.Tokenizer.from_str(
        json.dumps(wordpiece_json(PUNCTUATED, tmp_path))
    )


def test_punctuation_is_a_word_wherever_it_stands(punctuated):
    """BERT splits it off whether a space is before it or not; ``##,`` and ``...`` come of no text."""
    vocabulary, _ = punctuated
    ids = vocabulary.ids_by_surface
    for text, surface in ((b",", ","), ("日".encode(), "日")):
        assert {vocabulary.find(Tok(text, starts)) for starts in (True, False, None)} == {ids[surface]}
    assert vocabulary.find(Tok(b"a", False)) == ids["##a"]
    unused = {"##'", "##,", "...", "##日", "##本"}
    assert {PUNCTUATED[i] for i, tok in enumerate(vocabulary.tokens) if tok.kind is Kind.UNUSED} == unused


@pytest.mark.parametrize("word", ["don't", "...", "ta,ta", "日本", "a日a", "'t", "t'", "a"])
def test_words_with_punctuation_are_cut_as_the_library_does(punctuated, word):
    vocabulary, library = punctuated
    assert [p.id for p in vocabulary.segment(Tok(word.encode(), True))] == library.encode(word).ids


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "A man walks.\nTwo dogs run.\n",
            r"train\.en, line 1: 3 words .* looks like text; train a tokenizer",
        ),
        ("# A page\n## with a heading\n", r"line 1: 3 words .* looks like text"),
        ("yes\nno\nyes\n", r"'yes' occurs twice \(entries 1 and 3\)"),
        ("<unk>\t0\n▁the\t-3.24\n", r"line 1: a piece and its score.*give the model itself, train\.model"),
    ],
)
def test_text_is_no_vocabulary(content, message, tmp_path):
    (tmp_path / "train.en").write_text(content)
    with pytest.raises(DataError, match=message):
        load_vocabulary(tmp_path / "train.en")
    (tmp_path / "vocab.txt").write_text(content)
    if "yes" not in content:
        with pytest.raises(DataError, match="line 1"):
            load_vocabulary(tmp_path)


def test_frequencies_may_be_overwritten_as_fairseq_does(tmp_path):
    (tmp_path / "dict.txt").write_text("<unk> 0 #fairseq:overwrite\nthe 12\ncat@@ 3\n")
    assert load_vocabulary(tmp_path / "dict.txt").surfaces == ("<unk>", "the", "cat@@")


def test_a_separator_is_a_token_not_a_line_end(tmp_path):
    """U+2028 ends no line, else every id behind it were wrong."""
    (tmp_path / "dict.txt").write_bytes("a\u2028 3\r\nb 2\r\n".encode())
    assert load_vocabulary(tmp_path / "dict.txt").surfaces[4:] == ("a\u2028", "b")
