"""Tokenizers of every form, written for transformers: the same ids, special tokens, limits."""

import json
import random
import shutil
import warnings

import pytest
import sentencepiece
import transformers

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.encoding import text_encoder
from nlgraft.vocab.tokenizers.loading import (
    copy_tokenizer,
    find_tokenizer,
    finish_tokenizer,
    load_vocabulary,
    save_tokenizer,
)
from nlgraft.vocab.tokenizers.vocabulary import Tok
from tests.tiny_checkpoints import edit, train_spm

rng = random.Random(1)
STEMS = ["".join(rng.choices("abdeiklmnorstuzé", k=rng.randint(2, 5))) for _ in range(50)]
LINES = [" ".join("".join(rng.choices(STEMS, k=rng.randint(1, 3))) for _ in range(7)) for _ in range(500)]
TEXT = [*LINES[:60], "  two   spaces ", "ﬁne ¼ Ｆull", "unseen: 你好 q", "a<s>b", ""]


def train(prefix, vocab_size=300, **options):
    return train_spm(prefix, LINES, size=vocab_size, **options)


def loaded(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"model_type": "bpe"},
        {"model_type": "unigram", "byte_fallback": True, "vocab_size": 600},
        {"model_type": "bpe", "byte_fallback": True, "vocab_size": 600},
        {"model_type": "unigram", "normalization_rule_name": "identity", "add_dummy_prefix": False},
        {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf", "user_defined_symbols": ["<x>"]},
    ],
)
def test_sentencepiece_gives_the_ids_of_its_library(options, tmp_path):
    path = train(tmp_path / "m", **options)
    vocabulary = load_vocabulary(path)
    save_tokenizer(path, vocabulary, tmp_path / "saved")
    tokenizer = loaded(tmp_path / "saved")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert len(tokenizer) == processor.get_piece_size()
    for line in TEXT:
        if "<s>" not in line:  # transformers reads special tokens out of text, the library does not
            assert tokenizer(line, add_special_tokens=False)["input_ids"] == processor.encode(line), line
    for line in LINES[:20]:
        assert tokenizer.decode(processor.encode(line)) == processor.decode(processor.encode(line))
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 3)
    saved = load_vocabulary(tmp_path / "saved")
    assert saved.surfaces == vocabulary.surfaces
    assert dict(saved.roles) == dict(vocabulary.roles)


def test_a_model_that_marks_ends_is_refused(tmp_path):
    path = train(tmp_path / "m", treat_whitespace_as_suffix=True)
    with pytest.raises(DataError, match="treat_whitespace_as_suffix"):
        save_tokenizer(path, load_vocabulary(path), tmp_path / "saved")


def test_wordpiece_file_is_what_bert_reads(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "motor", "##cycle", "##s", "é", "!"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    save_tokenizer(tmp_path / "vocab.txt", load_vocabulary(tmp_path / "vocab.txt"), tmp_path / "saved")
    tokenizer = loaded(tmp_path / "saved")
    assert tokenizer("Motorcycles! x", add_special_tokens=False)["input_ids"] == [5, 6, 7, 9, 1]
    assert tokenizer.mask_token_id == 4
    assert tokenizer.decode([5, 6, 7]) == "motorcycles"


def test_byte_level_files_become_one(tmp_path):
    (tmp_path / "gpt").mkdir()
    vocab = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3, "Ġ": 4, "Ġab": 5, "#": 6, "##": 7}
    (tmp_path / "gpt" / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "gpt" / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n# #\n")
    vocabulary = load_vocabulary(tmp_path / "gpt")
    assert [p.id for p in vocabulary.segment(vocabulary.tokens[7])] == [7]
    for starts_word, expected in ((True, 5), (False, 3)):
        assert [p.id for p in vocabulary.segment(Tok(b"ab", starts_word))] == [expected]
    save_tokenizer(tmp_path / "gpt", vocabulary, tmp_path / "saved")
    tokenizer = loaded(tmp_path / "saved")
    assert tokenizer("ab ab##")["input_ids"] == [3, 5, 7]
    assert tokenizer.decode([3, 5, 7]) == "ab ab##"
    assert tokenizer.eos_token_id == 0


def test_subword_nmt_reads_what_subword_nmt_cut(tmp_path):
    (tmp_path / "dict.txt").write_text("mo@@ 9\ntor 8\nmotor 7\nm@@ 5\no@@ 4\nt@@ 3\nor 2\nr 1\n")
    vocabulary = load_vocabulary(tmp_path / "dict.txt")
    assert vocabulary.roles == {"bos": 0, "pad": 1, "eos": 2, "unk": 3}
    for surfaces, core, is_end in (("motor", b"motor", True), ("mo@@ t@@", b"mot", False)):
        pieces = vocabulary.segment(Tok(core, None, is_end))
        assert [vocabulary.surfaces[piece.id] for piece in pieces] == surfaces.split()
    save_tokenizer(tmp_path / "dict.txt", vocabulary, tmp_path / "saved")
    tokenizer = loaded(tmp_path / "saved")
    names = vocabulary.ids_by_surface
    assert tokenizer("mo@@ tor qq")["input_ids"] == [names["mo@@"], names["tor"], names["<unk>"]]
    again = load_vocabulary(tmp_path / "saved")
    assert again.surfaces == vocabulary.surfaces
    motor = vocabulary.tokens[names["motor"]]
    assert [p.id for p in again.segment(motor)] == [p.id for p in vocabulary.segment(motor)]
    assert text_encoder(tmp_path / "saved", again)(["motor"]) == [[names["motor"]]]


@pytest.fixture
def marian(tmp_path):
    """Ids of its own order and two models that cut differently."""
    directory = tmp_path / "marian"
    directory.mkdir()
    source, target = train(tmp_path / "s"), train(tmp_path / "t", vocab_size=250)
    processors = [sentencepiece.SentencePieceProcessor(model_file=str(p)) for p in (source, target)]
    pieces = {p.id_to_piece(i): None for p in processors for i in range(4, p.get_piece_size())}
    ids = {piece: i for i, piece in enumerate(["</s>", "<unk>", ">>de<<", *pieces, "<pad>"])}
    (directory / "vocab.json").write_text(json.dumps(ids))
    for path, name in ((source, "source.spm"), (target, "target.spm")):
        shutil.copyfile(path, directory / name)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
    return directory


def test_marian_counts_by_its_own_file(marian):
    """Ids are those of vocab.json and cuts those of each side's model, as transformers has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = loaded(marian)
    source, target = load_vocabulary(marian), load_vocabulary(marian / "target.spm")
    assert len(source) == len(tokenizer)
    assert source.tokens[2].kind.value == "special"
    words = [word for line in LINES[:20] for word in line.split()]
    assert text_encoder(marian, source)(words) == tokenizer(words, add_special_tokens=False)["input_ids"]
    expected = tokenizer(text_target=words, add_special_tokens=False)["input_ids"]
    assert text_encoder(marian / "target.spm", target)(words) == expected
    assert source.surfaces == target.surfaces


def test_numbers_of_slow_tokenizers_come_from_transformers(tmp_path):
    """XLM-R's and T5's pieces are numbered otherwise than in the model file beside them."""
    path = train(tmp_path / "spiece", byte_fallback=False)
    directory = tmp_path / "t5"
    directory.mkdir()
    shutil.copyfile(path, directory / "spiece.model")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 3})
    )
    vocabulary = load_vocabulary(directory)
    assert vocabulary.ids_by_surface == loaded(directory).get_vocab()
    assert "<extra_id_0>" in vocabulary.ids_by_surface


def make_bert(directory, tokens):
    transformers.BertTokenizer(vocab={t: i for i, t in enumerate(tokens)}).save_pretrained(directory)
    edit(directory / "tokenizer_config.json", model_max_length=77)


def save_beside_a_bert(place):
    make_bert(place / "old", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    path = train(place / "new")
    save_tokenizer(path, load_vocabulary(path), place / "saved")


def test_special_tokens_stand_where_the_old_ones_stood(tmp_path):
    """[CLS] a [SEP] b [SEP] becomes <s> a </s> b </s>, segments and longest sentence included."""
    save_beside_a_bert(tmp_path)
    notes = finish_tokenizer(tmp_path / "saved", tmp_path / "old", {0: 0, 1: 1, 2: 2, 3: 3})
    tokenizer = loaded(tmp_path / "saved")
    both = tokenizer("a", "b")
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in "ab"]
    assert both["input_ids"] == [2, *ids[0], 3, *ids[1], 3]
    assert both["token_type_ids"] == [0] * (len(ids[0]) + 2) + [1] * (len(ids[1]) + 1)
    assert tokenizer("a")["input_ids"] == [2, *ids[0], 3]
    assert tokenizer.model_max_length == 77
    assert notes == []
    finish_tokenizer(tmp_path / "saved", tmp_path / "old", {2: 0})
    assert loaded(tmp_path / "saved")("a")["input_ids"] == [2, *ids[0], 3]  # its own rule stays


def test_special_tokens_without_a_successor_are_told(tmp_path):
    save_beside_a_bert(tmp_path)
    (note,) = finish_tokenizer(tmp_path / "saved", tmp_path / "old", {3: 3})
    assert "that the new tokenizer lacks: 1" in note
    assert loaded(tmp_path / "saved")("a")["input_ids"][-1] == 3


def test_names_on_the_hub_are_fetched_and_others_refused(tmp_path, monkeypatch):
    import huggingface_hub

    make_bert(tmp_path / "hub", ["[PAD]", "[UNK]", "a"])
    requested = []

    def fetch(name, revision, allow_patterns):
        kept = ("tokenizer.json" in allow_patterns, "model.safetensors" in allow_patterns)
        requested.append((name, revision, *kept))
        if name != "someone/model":
            raise OSError("offline")
        return str(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert find_tokenizer("someone/model") == tmp_path / "hub"
    assert find_tokenizer(tmp_path / "hub") == tmp_path / "hub"
    with pytest.raises(DataError, match="not available from the Hugging Face hub"):
        find_tokenizer("someone/else", "v2")
    assert requested == [("someone/model", None, True, False), ("someone/else", "v2", True, False)]
    for name in ("missing.json", "a/b/c", str(tmp_path / "no")):
        with pytest.raises(DataError, match="not the name of a repository"):
            find_tokenizer(name)


def test_only_the_tokenizers_files_are_copied(tmp_path):
    make_bert(tmp_path / "old", ["[PAD]", "[UNK]", "a"])
    (tmp_path / "old" / "model.safetensors").write_text("x")
    (tmp_path / "old" / "config.json").write_text("{}")
    copy_tokenizer(tmp_path / "old", tmp_path / "copy")
    copied = {path.name for path in (tmp_path / "copy").iterdir()}
    assert "tokenizer.json" in copied
    assert not copied & {"model.safetensors", "config.json"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", "cannot be read as JSON"),
        ("b.json", b"[]", "expected a JSON object"),
        ("c.txt", b"\xff\xfe\x00", "nor a vocabulary in UTF-8"),
        ("d.model", b"no model", "not a SentencePiece model"),
        ("e.txt", b"", "no tokens"),
    ],
)
def test_broken_files_are_told_in_words(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_vocabulary(tmp_path / name)
