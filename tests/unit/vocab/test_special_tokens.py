"""Special tokens without a role through an exchange: T5's sentinels, mBART's languages, chat templates."""

import json

import pytest
import torch
import transformers

from nlgraft.text.tokenizers import learn_byte_tokenizer
from nlgraft.vocab_tool.checkpoints import load_checkpoint
from tests.tiny_checkpoints import (
    LANGUAGES,
    LINES,
    OTHER_LINES,
    edit,
    gpt2_tokenizer,
    load,
    marian,
    marian_tokenizer,
    qwen3,
    released,
    run,
    save_noisy,
    t5,
    train_spm,
    unigram_tokenizer,
)

SENTINELS = [f"<extra_id_{number}>" for number in range(3)]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if think %}<think>{% endif %}"
)


def exchange(old, new, directory, *options):
    """Plan and apply; gives the plan's JSON and the path of the new checkpoint."""
    plan = run("plan", "--old", old, "--new", new, "--out", directory / "plan", "--json", *options)
    run("apply", "--plan", directory / "plan", "--model", old, "--out", directory / "out")
    return plan, directory / "out"


def rows_of(model, tokenizer, tokens):
    return model.get_input_embeddings().weight[tokenizer.convert_tokens_to_ids(tokens)]


def exchange_by_spm(place, *options):
    return exchange(place / "old", train_spm(place / "new", OTHER_LINES), place, *options)


def t5_checkpoint(directory):
    directory.mkdir()
    unigram_tokenizer(directory, LINES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"extra_special_tokens": SENTINELS})
    tokenizer.save_pretrained(directory)
    save_noisy(directory, t5)


def test_sentinels_of_t5_keep_their_rows(tmp_path):
    t5_checkpoint(tmp_path / "old")
    plan, out = exchange_by_spm(tmp_path)
    assert json.loads(plan.stdout)["specials"] == {"kept": SENTINELS, "lost": []}
    (before, old), (after, tokenizer) = load(tmp_path / "old"), load(out)
    assert torch.equal(rows_of(before, old, SENTINELS), rows_of(after, tokenizer, SENTINELS))
    assert tokenizer("<extra_id_1>", add_special_tokens=False)["input_ids"] == [len(tokenizer) - 2]
    assert (
        tokenizer.decode(tokenizer(LINES[0] + "<extra_id_0>").input_ids, skip_special_tokens=True) == LINES[0]
    )
    run("verify", out)


def test_what_is_lost_is_listed(tmp_path):
    t5_checkpoint(tmp_path / "old")
    plan, out = exchange_by_spm(tmp_path, "--keep-special", "none")
    assert json.loads(plan.stdout)["specials"] == {"kept": [], "lost": SENTINELS}
    assert f"lacks 3 special tokens of the old one: {', '.join(SENTINELS)}" in plan.stderr
    assert "<extra_id_0>" not in load(out)[1].get_vocab()


@pytest.mark.parametrize("new_kind", ["sentencepiece", "unigram"])
def test_languages_of_mbart_start_its_output(new_kind, tmp_path):
    """The first token of the output, and the rule around a sentence, also where the new one has a rule."""
    before = released(tmp_path / "old", "mbart")
    (tmp_path / "new").mkdir()
    new = train_spm(tmp_path / "new" / "x", OTHER_LINES) if new_kind == "sentencepiece" else tmp_path / "new"
    if new_kind == "unigram":
        unigram_tokenizer(new, OTHER_LINES)
    _, out = exchange(tmp_path / "old", new, tmp_path)
    model, tokenizer = load(out)
    english, german = tokenizer.convert_tokens_to_ids(LANGUAGES)
    assert model.config.decoder_start_token_id == german
    assert model.generation_config.decoder_start_token_id == german
    assert tokenizer("a")["input_ids"][-2:] == [tokenizer.eos_token_id, english]
    old = transformers.AutoTokenizer.from_pretrained(tmp_path / "old")
    assert torch.equal(rows_of(before, old, LANGUAGES), rows_of(model, tokenizer, LANGUAGES))
    run("verify", out)


def test_a_named_id_that_vanished_fails_verification(tmp_path):
    released(tmp_path / "old", "mbart")
    _, out = exchange_by_spm(tmp_path, "--keep-special", "none")
    assert load_checkpoint(out).config.decoder_start_token_id is None
    checks = json.loads(run("verify", out, "--json", code=1).stdout)["checks"]
    (bad,) = [check for check in checks if not check["is_good"]]
    assert bad["check"] == "named ids have tokens"
    assert "decoder_start_token_id: de_DE" in bad["detail"]
    # set by hand, it is no longer missing
    edit(out / "config.json", decoder_start_token_id=2)
    run("verify", out)


def chat_checkpoint(directory):
    directory.mkdir()
    gpt2_tokenizer(directory, LINES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    tokenizer.add_tokens(["<|im_start|>", "<|box|>"], special_tokens=True)
    tokenizer.add_tokens(["<think>", "\n", "<unused7>", "<table>"])  # text, as some of Gemma's
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    model = save_noisy(directory, qwen3)
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model.generation_config.eos_token_id, model.config.eos_token_id = ends, ends[0]
    model.save_pretrained(directory)
    return model, tokenizer


def test_a_chat_template_still_writes_tokens(tmp_path):
    """Tokens that the template writes stay, the end of a turn too, though the new tokenizer has an end."""
    before, old = chat_checkpoint(tmp_path / "old")
    plan, out = exchange_by_spm(tmp_path)
    specials = json.loads(plan.stdout)["specials"]
    assert {*specials["kept"]} == {"<|im_end|>", "<|im_start|>", "<think>"}
    assert specials["lost"] == ["<|box|>"]
    model, tokenizer = load(out)
    messages = [{"role": "user", "content": OTHER_LINES[0]}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, think=True)
    assert text == old.apply_chat_template(messages, tokenize=False, think=True)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    written = ["<|im_start|>", "<|im_end|>", "<think>"]
    assert {*tokenizer.convert_tokens_to_ids(written)} <= {*ids}
    assert torch.equal(rows_of(before, old, written), rows_of(model, tokenizer, written))
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.eos_token_id[0] == tokenizer.eos_token_id
    run("verify", out)


def test_an_end_that_differed_before_is_no_fault_of_the_exchange(tmp_path):
    """As released models do whose configuration was made for text without turns."""
    model, tokenizer = chat_checkpoint(tmp_path / "old")
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.save_pretrained(tmp_path / "old")
    run("verify", tmp_path / "old", code=1)
    (tmp_path / "new").mkdir()
    gpt2_tokenizer(tmp_path / "new", OTHER_LINES)
    _, out = exchange(tmp_path / "old", tmp_path / "new", tmp_path)
    assert "not before the exchange either: eos" in run("verify", out).stdout
    edit(out / "config.json", eos_token_id=1)
    assert "FAIL  special ids agree" in run("verify", out, code=1).stdout
    edit(out / "config.json", eos_token_id=[])
    checks = json.loads(run("verify", out, "--json", code=1).stdout)["checks"]
    [agree] = [check for check in checks if check["check"] == "special ids agree"]
    assert not agree["is_good"]
    assert "eos: none in " in agree["detail"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_beginning_that_the_new_tokenizer_lacks(is_kept, tmp_path):
    """As Mistral's: a configuration and the rule around a sentence name it; `<unk>` is only listed."""
    (tmp_path / "new").mkdir()
    before = released(tmp_path / "old", "gemma3")
    learn_byte_tokenizer(OTHER_LINES, 400, tmp_path / "new")
    options = [] if is_kept else ["--keep-special", "none"]
    plan, out = exchange(tmp_path / "old", tmp_path / "new", tmp_path, *options)
    assert "<unk>" in json.loads(plan.stdout)["specials"]["lost"]
    run("verify", out, code=0 if is_kept else 1)
    if is_kept:
        (model, tokenizer), old = load(out), load(tmp_path / "old")[1]
        assert tokenizer.convert_ids_to_tokens(tokenizer("a").input_ids)[0] == tokenizer.bos_token == "<bos>"
        assert model.config.bos_token_id == tokenizer.bos_token_id
        assert torch.equal(rows_of(before, old, ["<bos>"]), rows_of(model, tokenizer, ["<bos>"]))


def test_several_ends_and_a_new_token_with_two_roles(tmp_path):
    """Gemma's list of ends keeps the first one, though the token for it begins a text, too (GPT-2)."""
    (tmp_path / "new").mkdir()
    gpt2_tokenizer(tmp_path / "new", LINES)
    released(tmp_path / "old", "gemma3")
    _, out = exchange(tmp_path / "old", tmp_path / "new", tmp_path)
    model, tokenizer = load(out)
    assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<end_of_turn>"])
    run("verify", out)


def test_a_role_that_only_the_configuration_knows(tmp_path):
    """As OPUS-MT's: its configuration begins with ``</s>``, a new SentencePiece model has ``<s>``."""
    (tmp_path / "old").mkdir()
    marian_tokenizer(tmp_path / "old", LINES)
    model = marian(json.loads((tmp_path / "old" / "vocab.json").read_text()))
    model.config.bos_token_id = model.generation_config.bos_token_id = 0
    model.save_pretrained(tmp_path / "old")
    plan = tmp_path / "plan"
    run("plan", "--old", tmp_path / "old", "--new", train_spm(tmp_path / "new", OTHER_LINES), "--out", plan)
    out = tmp_path / "out"
    applied = run("apply", "--plan", plan, "--model", tmp_path / "old", "--out", out)
    assert "'<s>' gets the row of '</s>', to which the configuration gives its role" in applied.stderr
    run("verify", out)
    after, tokenizer = load(out)
    assert after.config.bos_token_id == after.generation_config.bos_token_id == tokenizer.bos_token_id == 2
    assert after.config.eos_token_id == after.config.forced_eos_token_id == tokenizer.eos_token_id == 3
    old, new = (each.get_input_embeddings().weight for each in (model, after))
    assert torch.equal(new[2], old[0])
    assert torch.equal(new[3], old[0])
