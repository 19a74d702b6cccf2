"""Vocabularies without their rare tokens."""

import json
import random

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import models, processors

from nlgraft.basics.errors import DataError
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.text.word_tokenizers import learn_tokenizer
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.pruning import prune_tokenizer
from nlgraft.vocab.tokenizers.spm import sentencepiece_json
from nlgraft.vocab_tool.changed import prune
from nlgraft.vocab_tool.checks import unreachable_tokens
from nlgraft.vocab_tool.plan_exchange import PlanRequest, plan_transfer
from tests.tiny_checkpoints import learn_bytes, run


@pytest.fixture(scope="module")
def lines():
    texts = [
        load_corpus(
            ConlangConfig(corpus="conlang", task="monolingual", domain=domain, train=250, dev=1, test=1)
        )
        for domain in "ab"
    ]
    return [text["train"].sources[0] for text in texts]


def pruned(place, lines, old="old", **options):
    (place / "text").write_text("\n".join(lines), "utf-8")
    return prune(str(place / old), [place / "text"], place / "new", **options)


def learned(kind, lines, directory):
    """A tokenizer of both domains as transformers saves it, special tokens last and around every line."""
    directory.mkdir()
    if kind != "byte-level":
        learn_tokenizer([*lines[0], *lines[1]], WordTokenizerConfig(kind=kind, vocab_size=500), directory)
        return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
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
    after = tokenizers.Tokenizer.from_file(str(tmp_path / "new" / "tokenizer.json"))
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
    plan = plan_transfer(PlanRequest(old=str(tmp_path / "old"), new=str(tmp_path / "new"))).plan
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
    after = tokenizers.Tokenizer.from_file(str(tmp_path / "new" / "tokenizer.json"))
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
        before, after = (
            tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")) for path in (tmp_path, out)
        )
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
