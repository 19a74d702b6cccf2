"""Pruned and extended vocabularies."""

import json
import math
import random
from collections import Counter
from itertools import combinations, pairwise

import pytest
import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import models, processors

from nlgraft.basics.errors import DataError
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.text.tokenizers import learn_tokenizer
from nlgraft.vocab.tokenizers.extension import continue_merges, expected_counts, learn_pieces
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.pruning import prune_tokenizer
from nlgraft.vocab.tokenizers.spm import sentencepiece_json
from nlgraft.vocab_tool.changed import extend, prune
from nlgraft.vocab_tool.checks import unreachable_tokens
from nlgraft.vocab_tool.plan_exchange import PlanRequest, plan_transfer
from tests.tiny_checkpoints import (
    LANGUAGES,
    LINES,
    OTHER_LINES,
    edit,
    gpt2_tokenizer,
    learn_bytes,
    qwen3,
    run,
    sentencepiece_bpe_tokenizer,
    unigram_tokenizer,
)


@pytest.fixture(scope="module")
def lines():
    texts = [
        load_corpus(
            ConlangConfig(corpus="conlang", task="monolingual", domain=domain, train=300, dev=1, test=1)
        )
        for domain in "ab"
    ]
    return [text["train"].sources[0] for text in texts]


def pruned(place, lines, old="old", **options):
    (place / "text").write_text("\n".join(lines), "utf-8")
    return prune(str(place / old), [place / "text"], place / "new", **options)


def planned(place, **options):
    return plan_transfer(PlanRequest(str(place / "old"), str(place / "new"), **options)).plan


def open_tokenizer(directory):
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


def learned(kind, lines, directory):
    """A tokenizer of both domains as transformers saves it, special tokens last and around every line."""
    directory.mkdir()
    if kind != "byte-level":
        learn_tokenizer([*lines[0], *lines[1]], WordTokenizerConfig(kind=kind, vocab_size=500), directory)
        return open_tokenizer(directory)
    made = learn_bytes([*lines[0], *lines[1]], 600)
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(name, made.token_to_id(name)) for name in ("<s>", "</s>")]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(directory)
    return made


@pytest.mark.parametrize("kind", ["byte-level", "bpe", "wordpiece", "unigram"])
def test_text_of_kept_tokens_is_encoded_as_before(kind, lines, tmp_path):
    """Surfaces are compared, since ids move; random text covers every way through the merges."""
    before = learned(kind, lines, tmp_path / "old")
    done = pruned(tmp_path, lines[0])
    after = open_tokenizer(tmp_path / "new")
    assert done.new_size == after.get_vocab_size() < done.old_size
    assert done.text.new_tokens == done.text.old_tokens
    kept = set(after.get_vocab())
    draw = random.Random(0)
    parts = [before.decode([i]) for i in range(before.get_vocab_size())]
    texts = [*lines[1], *("".join(draw.choices(parts, k=6)).strip() for _ in range(2000))]
    num_compared = 0
    for text in texts:
        tokens = before.encode(text).tokens
        if set(tokens) <= kept:
            num_compared += 1
            assert after.encode(text).tokens == tokens
    assert num_compared > 20
    old, new = load_vocabulary(tmp_path / "old"), load_vocabulary(tmp_path / "new")
    readable = {old.surfaces[i] for i in range(len(old))} - {old.surfaces[i] for i in unreachable_tokens(old)}
    assert not [new.surfaces[i] for i in unreachable_tokens(new) if new.surfaces[i] in readable]


def test_every_row_of_a_pruned_vocabulary_is_a_copy(lines, tmp_path):
    before = learned("byte-level", lines, tmp_path / "old")
    done = pruned(tmp_path, lines[0], min_count=3, size=300)
    assert done.new_size <= 300
    assert done.text.new_tokens > done.text.old_tokens
    after = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert after.convert_ids_to_tokens(after("a b")["input_ids"])[::3] == ["<s>", "</s>"]
    assert after.decode(after(lines[1][0])["input_ids"], skip_special_tokens=True) == lines[1][0]
    plan = planned(tmp_path)
    assert set(plan.counts()) == {"copy", "special"}
    vocabulary = before.get_vocab()
    assert all(
        plan.old_surfaces[plan.matrix[row].indices[0]] == plan.new_surfaces[row] for row in range(len(plan))
    )
    assert set(plan.new_surfaces) <= set(vocabulary)


def test_parts_of_a_kept_token_stay():
    """`abcd` is made of `ab` and `cd`, which the text itself lacks; `bc` is not on the way."""
    pieces = ["a", "b", "c", "d", "ab", "cd", "bc", "abcd"]
    made = tokenizers.Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, [("a", "b"), ("c", "d"), ("b", "c"), ("ab", "cd")])
    )
    document = json.loads(made.to_str())
    pruned = prune_tokenizer(document, [0] * 7 + [5])
    assert document == json.loads(made.to_str()), "what was given stays as it is"
    assert list(pruned.document["model"]["vocab"]) == ["a", "b", "c", "d", "ab", "cd", "abcd"]
    assert pruned.old_ids == (0, 1, 2, 3, 4, 5, 7)
    assert len(pruned.document["model"]["merges"]) == 3
    with pytest.raises(DataError, match="size is 3, but 4"):
        prune_tokenizer(document, [0] * 8, size=3)
    assert len(prune_tokenizer(document, [0] * 7 + [5], size=6).old_ids) == 4, "it and its parts, or neither"


def test_commands_print_what_they_did(lines, tmp_path):
    learned("bpe", lines, tmp_path / "old")
    (tmp_path / "text").write_text("\n".join(lines[0]), "utf-8")
    arguments = ["--text", str(tmp_path / "text"), "--json"]
    steps = [
        ["prune", str(tmp_path / "old"), "--out", str(tmp_path / "pruned"), *arguments],
        ["extend", str(tmp_path / "pruned"), "--out", str(tmp_path / "new"), "--tokens", "7", *arguments],
    ]
    pruned, extended = (json.loads(run(*step).stdout) for step in steps)
    assert pruned["old_size"] > pruned["new_size"] == extended["old_size"] == extended["new_size"] - 7
    assert pruned["old_tokens"] == pruned["new_tokens"] > extended["new_tokens"]
    assert "exists and is not empty" in run("prune", *steps[0][1:-1], code=2).stderr


def test_padding_is_not_counted_and_its_id_follows(lines, tmp_path):
    """Tokenizers that pad every line keep doing so, with the new id of the padding token."""
    plain = learned("wordpiece", lines, tmp_path / "plain")
    padding = next(token for token in plain.get_vocab() if "pad" in token.lower())
    document = json.loads(plain.to_str())
    last = max(document["model"]["vocab"].values()) + 1
    document["added_tokens"] = [e for e in document["added_tokens"] if e["content"] != padding]
    document["model"]["vocab"].pop(padding)
    document["model"]["vocab"]["<fill>"] = last
    padded = tokenizers.Tokenizer.from_str(json.dumps(document))
    padded.enable_padding(length=128, pad_id=last, pad_token="<fill>")
    padded.save(str(tmp_path / "tokenizer.json"))
    done = pruned(tmp_path, lines[0][:20], "tokenizer.json")
    after = open_tokenizer(tmp_path / "new")
    assert (
        done.text.new_tokens
        == done.text.old_tokens
        == sum(len(plain.encode(line, add_special_tokens=False)) for line in lines[0][:20])
    )
    assert after.encode(lines[0][0]).tokens[-1] == "<fill>"
    assert after.encode(lines[0][0]).ids[-1] == after.token_to_id("<fill>") < last


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_rare_characters_go_where_bytes_spell_them(kind, tmp_path):
    """As Gemma's: dropped characters are written in bytes, and no text is lost."""
    letters = "".join(chr(0x4E00 + number) for number in range(40))
    lines = ["a dog and a cat", f"rare {letters}"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines[:1] * 20, lines[1]]),
        model_prefix=str(tmp_path / "x"),
        model_type=kind,
        byte_fallback=True,
        minloglevel=2,
        vocab_size=330,
        hard_vocab_limit=False,
        character_coverage=1.0,
    )
    document = sentencepiece_json(tmp_path / "x.model")
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    (tmp_path / "text").write_text("a dog and a cat\n" * 6 + "a cat and a 丁\n" * 3, "utf-8")
    kept_letters = {}
    for min_count in (1, 4):
        out = tmp_path / str(min_count)
        prune(str(tmp_path / "tokenizer.json"), [tmp_path / "text"], out, min_count=min_count)
        before, after = map(open_tokenizer, (tmp_path, out))
        kept = after.get_vocab().keys()
        kept_letters[min_count] = [letter for letter in letters if letter in kept]
        assert {f"<0x{byte:02X}>" for byte in range(256)} <= kept
        assert after.encode("a dog and a cat").tokens == before.encode("a dog and a cat").tokens
        assert (
            after.decode(after.encode(lines[1]).ids) == before.decode(before.encode(lines[1]).ids) == lines[1]
        )
    assert kept_letters == {1: ["丁"], 4: []}
    document["model"]["byte_fallback"] = False
    counts = [0] * len(document["model"]["vocab"])
    whole = prune_tokenizer(document, counts).document["model"]["vocab"]
    names = {*whole} if isinstance(whole, dict) else {piece for piece, _ in whole}
    assert {*letters} <= names


# Extended tokenizers.


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
    return [open_tokenizer(place / name) for name in ("old", "new")]


def extended(place, lines, num_tokens, old="old"):
    (place / "text").write_text("\n".join(lines), "utf-8")
    return extend(str(place / old), [place / "text"], place / "new", num_tokens=num_tokens)


def bpe_tokenizer(directory, lines):
    directory.mkdir()
    learn_tokenizer(lines, WordTokenizerConfig(kind="bpe", vocab_size=250), directory)


@pytest.mark.parametrize("write_tokenizer", [gpt2_tokenizer, bpe_tokenizer])
def test_every_new_token_is_reachable_and_old_ids_stay(write_tokenizer, lines, tmp_path):
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
    plan = planned(tmp_path, method="vipi")
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
    plan = planned(tmp_path, method="vipi")
    assert [plan.old_surfaces[plan.matrix[i].indices[0]] for i in range(done.old_size)] == [
        *plan.new_surfaces[: done.old_size]
    ]
