"""Vocabularies with further tokens for a text."""

from __future__ import annotations

import json

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from nlgraft.errors import DataError
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.text.word_tokenizers import learn_tokenizer
from nlgraft.vocab.tokenizers.extending import continue_merges
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab_tool.doctor import unreachable_tokens
from nlgraft.vocab_tool.extend import extend
from nlgraft.vocab_tool.plan_exchange import PlanRequest, plan_transfer
from tests.tiny_checkpoints import gpt2_tokenizer, qwen3, run, sentencepiece_bpe_tokenizer


def test_merges_by_hand():
    """`ab` stands 5 times, then `abc` 3 times; `bc` lost its neighbour, `aa` joins from the left."""
    words = {("a", "b", "c"): 3, ("a", "b"): 2, ("b", "c", "x"): 1, ("a", "a", "a"): 1}
    merges = continue_merges(words, {"a", "b", "c", "x"}, 10, 1)
    assert merges[:3] == [("a", "b"), ("ab", "c"), ("a", "a")]
    assert merges[3:] == [("aa", "a"), ("b", "c"), ("bc", "x")]
    assert continue_merges(words, {"a", "b", "c", "x"}, 10, 3) == [("a", "b"), ("ab", "c")]
    assert continue_merges(words, {"a", "b", "c", "x", "ab"}, 1, 1) == [("b", "c")]


def write(kind, lines, directory):
    """A tokenizer of the first domain."""
    if kind == "bpe":
        directory.mkdir()
        learn_tokenizer(lines, WordTokenizerConfig(kind="bpe", vocab_size=250), directory)
        return
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(lines, trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>").save_pretrained(directory)


@pytest.mark.parametrize("kind", ["byte-level", "bpe"])
def test_every_new_token_is_reachable_and_old_ids_stay(kind, tmp_path):
    lines = [
        load_corpus(
            ConlangConfig(corpus="conlang", task="monolingual", domain=domain, train=300, dev=1, test=1)
        )["train"].sources[0]
        for domain in "ab"
    ]
    write(kind, lines[0], tmp_path / "old")
    (tmp_path / "text").write_text("\n".join(lines[1]), "utf-8")
    done = extend(str(tmp_path / "old"), [tmp_path / "text"], tmp_path / "new", num_tokens=150)
    assert done.new_size == done.old_size + 150
    assert done.new_tokens < 0.9 * done.old_tokens
    before, after = (
        tokenizers.Tokenizer.from_file(str(tmp_path / name / "tokenizer.json")) for name in ("old", "new")
    )
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
    file = tmp_path / "old" / "tokenizer.json"
    document = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(document | {"normalizer": {"type": "NFC"}}), "utf-8")
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "old").get_vocab()
    torch.manual_seed(0)
    before = qwen3(ids).to(torch.bfloat16)
    before.save_pretrained(tmp_path / "old")
    (tmp_path / "text").write_text("another language \u00c5ngstr\u00f6m\n" * 3, "utf-8")
    extend(str(tmp_path / "old"), [tmp_path / "text"], tmp_path / "new", num_tokens=9)
    for method in ("avg", "mean"):
        plan = tmp_path / method / "plan"
        run("plan", "--old", tmp_path / "old", "--new", tmp_path / "new", "--method", method, "--out", plan)
        run("apply", "--plan", plan, "--model", tmp_path / "old", "--out", tmp_path / method / "out")
        after = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / method / "out", dtype="auto")
        for one, other in (
            (before.get_input_embeddings(), after.get_input_embeddings()),
            (before.get_output_embeddings(), after.get_output_embeddings()),
        ):
            assert torch.equal(one.weight[: len(ids)], other.weight[: len(ids)])


@pytest.mark.parametrize("has_bytes", [True, False])
def test_marked_words_are_extended_within_themselves(has_bytes, tmp_path):
    """As Gemma's, whose marks are letters to its pre-tokenizer; bytes and what is unknown join nothing."""
    sentencepiece_bpe_tokenizer(tmp_path / "old", ["dog costs much", "cats cost more"] * 5)
    file = tmp_path / "old" / "tokenizer.json"
    document = json.loads(file.read_text("utf-8"))
    document["model"]["byte_fallback"] = has_bytes
    file.write_text(json.dumps(document), "utf-8")
    text = ["the dog costs 5€ teacher", "a%dog costs 5€ teacher"]
    (tmp_path / "text").write_text("\n".join(text * 3), "utf-8")
    done = extend(str(tmp_path / "old"), [tmp_path / "text"], tmp_path / "new", num_tokens=60)
    before, after = (
        tokenizers.Tokenizer.from_file(str(tmp_path / name / "tokenizer.json")) for name in ("old", "new")
    )
    made = set(after.get_vocab()) - set(before.get_vocab())
    assert "▁teacher" in made
    assert done.new_tokens < done.old_tokens
    assert not [token for token in made if "▁" in token[1:] or "<" in token]
    for line in text:
        assert after.decode(after.encode(line).ids) == before.decode(before.encode(line).ids)


def test_a_text_without_marks_or_words_is_refused(tmp_path):
    made = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, " ": 1}, merges=[]))
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("a a", "utf-8")
    with pytest.raises(DataError, match="does not separate words"):
        extend(str(tmp_path / "tokenizer.json"), [tmp_path / "text"], tmp_path / "new", num_tokens=2)


def test_a_wordpiece_vocabulary_is_refused(tmp_path):
    learn_tokenizer(["some words of text"] * 3, WordTokenizerConfig(vocab_size=60), tmp_path)
    (tmp_path / "text").write_text("text", "utf-8")
    with pytest.raises(DataError, match="only BPE whose tokens have no prefix"):
        extend(str(tmp_path), [tmp_path / "text"], tmp_path / "new", num_tokens=2)
