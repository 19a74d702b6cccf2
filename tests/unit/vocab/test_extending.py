"""Vocabularies with further tokens for a text."""

import json
import math
from collections import Counter
from itertools import combinations, pairwise

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models

from nlgraft.basics.errors import DataError
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.text.word_tokenizers import learn_tokenizer
from nlgraft.vocab.tokenizers.extension import continue_merges, expected_counts, learn_pieces
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab_tool.changed import extend
from nlgraft.vocab_tool.checks import unreachable_tokens
from nlgraft.vocab_tool.plan_exchange import PlanRequest, plan_transfer
from tests.tiny_checkpoints import (
    LANGUAGES,
    LINES,
    OTHER_LINES,
    edit,
    gpt2_tokenizer,
    qwen3,
    run,
    sentencepiece_bpe_tokenizer,
    unigram_tokenizer,
)


def test_merges_by_hand():
    """`ab` stands 5 times, then `abc` 3 times; `bc` lost its neighbour, `aa` joins from the left."""
    words = {("a", "b", "c"): 3, ("a", "b"): 2, ("b", "c", "x"): 1, ("a", "a", "a"): 1}
    merges = continue_merges(words, {"a", "b", "c", "x"}, 10, 1)
    assert merges[:3] == [("a", "b"), ("ab", "c"), ("a", "a")]
    assert merges[3:] == [("aa", "a"), ("b", "c"), ("bc", "x")]
    assert continue_merges(words, {"a", "b", "c", "x"}, 10, 3) == [("a", "b"), ("ab", "c")]
    assert continue_merges(words, {"a", "b", "c", "x", "ab"}, 1, 1) == [("b", "c")]


def opened(place):
    """The tokenizers before and after."""
    paths = (place / name / "tokenizer.json" for name in ("old", "new"))
    return [tokenizers.Tokenizer.from_file(str(path)) for path in paths]


def extended(place, lines, num_tokens, old="old"):
    (place / "text").write_text("\n".join(lines), "utf-8")
    return extend(str(place / old), [place / "text"], place / "new", num_tokens=num_tokens)


def bpe_tokenizer(directory, lines):
    directory.mkdir()
    learn_tokenizer(lines, WordTokenizerConfig(kind="bpe", vocab_size=250), directory)


@pytest.mark.parametrize("write_tokenizer", [gpt2_tokenizer, bpe_tokenizer])
def test_every_new_token_is_reachable_and_old_ids_stay(write_tokenizer, tmp_path):
    lines = [
        load_corpus(
            ConlangConfig(corpus="conlang", task="monolingual", domain=domain, train=300, dev=1, test=1)
        )["train"].sources[0]
        for domain in "ab"
    ]
    write_tokenizer(tmp_path / "old", lines[0])
    done = extended(tmp_path, lines[1], 150)
    assert done.new_size == done.old_size + 150
    assert done.text.new_tokens < 0.9 * done.text.old_tokens
    before, after = opened(tmp_path)
    assert before.get_vocab().items() <= after.get_vocab().items()
    old, new = load_vocabulary(tmp_path / "old"), load_vocabulary(tmp_path / "new")
    assert unreachable_tokens(new) == unreachable_tokens(old)
    counts = {token for line in lines[1] for token in after.encode(line).tokens}
    assert len(counts - set(before.get_vocab())) > 75, "most new tokens stand in the text itself"
    for line in [*lines[0], *lines[1]]:
        assert after.decode(after.encode(line).ids) == before.decode(before.encode(line).ids)
    plan = plan_transfer(PlanRequest(str(tmp_path / "old"), str(tmp_path / "new"), method="vipi")).plan
    assert plan.counts()["composed"] == 150
    assert set(plan.counts()) <= {"copy", "special", "composed"}


def test_old_rows_stay_bit_equal(tmp_path):
    """As Qwen's, whose normalisation (NFC) changes some of its own tokens into others."""
    gpt2_tokenizer(
        tmp_path / "old", ["\u212bngstr\u00f6m \u00c5sa \u03a9 \u2126 e\u0301t\u00e9 \u00e9t\u00e9"] * 5
    )
    edit(tmp_path / "old" / "tokenizer.json", normalizer={"type": "NFC"})
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "old").get_vocab()
    (tmp_path / "old" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    torch.manual_seed(0)
    before = qwen3(ids).to(torch.bfloat16)
    before.save_pretrained(tmp_path / "old")
    extended(tmp_path, ["another language \u00c5ngstr\u00f6m"] * 3, 9)
    assert (tmp_path / "new" / "chat_template.jinja").is_file()
    for method in ("avg", "mean"):
        plan = tmp_path / method / "plan"
        run("plan", "--old", tmp_path / "old", "--new", tmp_path / "new", "--method", method, "--out", plan)
        run("apply", "--plan", plan, "--model", tmp_path / "old", "--out", tmp_path / method / "out")
        after = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / method / "out", dtype="auto")
        for table, other in (
            (before.get_input_embeddings(), after.get_input_embeddings()),
            (before.get_output_embeddings(), after.get_output_embeddings()),
        ):
            assert torch.equal(table.weight[: len(ids)], other.weight[: len(ids)])


@pytest.mark.parametrize("has_bytes", [True, False])
def test_marked_words_are_extended_within_themselves(has_bytes, tmp_path):
    """As Gemma's, whose marks are letters to its pre-tokenizer; bytes and what is unknown join nothing."""
    sentencepiece_bpe_tokenizer(tmp_path / "old", ["dog costs much", "cats cost more"] * 5)
    file = tmp_path / "old" / "tokenizer.json"
    document = json.loads(file.read_text("utf-8"))
    document["model"]["byte_fallback"] = has_bytes
    file.write_text(json.dumps(document), "utf-8")
    text = ["the dog costs 5€ teacher", "a%dog costs 5€ teacher"]
    done = extended(tmp_path, text * 3, 60)
    before, after = opened(tmp_path)
    made = set(after.get_vocab()) - set(before.get_vocab())
    assert "▁teacher" in made
    assert done.text.new_tokens < done.text.old_tokens
    assert not [token for token in made if "▁" in token[1:] or "<" in token]
    for line in text:
        assert after.decode(after.encode(line).ids) == before.decode(before.encode(line).ids)


def test_a_text_without_marks_or_words_is_refused(tmp_path):
    made = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, " ": 1}, merges=[]))
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="does not separate words"):
        extended(tmp_path, ["a a"], 2, "tokenizer.json")


def test_a_wordpiece_vocabulary_is_refused(tmp_path):
    learn_tokenizer(["some words of text"] * 3, WordTokenizerConfig(vocab_size=60), tmp_path)
    with pytest.raises(DataError, match="only BPE whose tokens have no prefix"):
        extended(tmp_path, ["text"], 2, "")


def segmentations(text):
    """All ways to cut a text."""
    ways = (way for number in range(len(text)) for way in combinations(range(1, len(text)), number))
    return [[text[a:b] for a, b in pairwise([0, *way, len(text)])] for way in ways]


def best_score(text, scores):
    return max(sum(scores.get(piece, -99.0) for piece in way) for way in segmentations(text))


def test_expected_counts_are_those_over_all_segmentations():
    scores = {"a": -2.0, "b": -1.5, "ab": -2.5, "ba": -3.0, "aba": -4.0}
    words = {"ababa": 3, "bab": 2, "a": 1}
    expected = Counter()
    for word, count in words.items():
        ways = [way for way in segmentations(word) if {*way} <= scores.keys()]
        weights = [math.exp(sum(map(scores.get, way))) for way in ways]
        for way, weight in zip(ways, weights, strict=True):
            for piece in way:
                expected[piece] += count * weight / sum(weights)
    assert expected_counts(words, scores) == pytest.approx(dict(expected))


def test_pieces_by_likelihood_by_hand():
    """`c` was unknown and gains 5 (log 5/14 + 12), `ab` at most 9 (log 9/14 + 4)."""
    vocab = [["<unk>", 0.0], ["a", -2.0], ["b", -2.0]]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocab}
    words = {"ab": 9, "c": 5}
    (score,) = learn_pieces(model, {"c": 5, "a": 5}, 1, 1).values()
    assert score == pytest.approx(math.log(5 / 10))
    assert [*learn_pieces(model, words, 2, 1)] == ["c", "ab"]
    assert learn_pieces(model, words, 2, 10) == {}


@pytest.mark.parametrize("specials", [(), LANGUAGES])
def test_unigram_gets_pieces_behind_its_own(specials, tmp_path):
    """Old pieces, scores and ids stay; the likelihood of the text rises; each new piece reads itself."""
    (tmp_path / "old").mkdir()
    unigram_tokenizer(tmp_path / "old", LINES, specials)
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "old")
    fast.add_special_tokens({"extra_special_tokens": ["<extra_id_0>"]})
    fast.save_pretrained(tmp_path / "old")
    text = [f"{line} zweite Sprache z" for line in OTHER_LINES]
    done = extended(tmp_path, text, 15)
    assert done.old_size + 10 <= done.new_size <= done.old_size + 15
    assert done.text.new_tokens < 0.7 * done.text.old_tokens
    before, after = opened(tmp_path)
    assert before.get_vocab().items() <= after.get_vocab().items()
    old, new = (
        dict(json.loads((tmp_path / name / "tokenizer.json").read_text("utf-8"))["model"]["vocab"])
        for name in ("old", "new")
    )
    assert old.items() <= new.items()
    made = {piece: score for piece, score in new.items() if piece not in before.get_vocab()}
    assert len(made) == done.new_size - done.old_size
    for piece, score in made.items():
        others = {other: value for other, value in new.items() if other != piece}
        assert len(piece) > 12 or score > best_score(piece, others)
    assert "z" in made
    assert {*made}.isdisjoint(piece for piece in made if "\u2581" in piece[1:])
    reading = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert reading.decode(reading(text[0])["input_ids"], skip_special_tokens=True) == text[0]
    vocabulary = load_vocabulary(tmp_path / "new")
    unread = {vocabulary.surfaces[i] for i in unreachable_tokens(vocabulary)}
    assert unread.isdisjoint(made)
    plan = plan_transfer(PlanRequest(str(tmp_path / "old"), str(tmp_path / "new"), method="vipi")).plan
    assert [plan.old_surfaces[plan.matrix[i].indices[0]] for i in range(done.old_size)] == [
        *plan.new_surfaces[: done.old_size]
    ]
