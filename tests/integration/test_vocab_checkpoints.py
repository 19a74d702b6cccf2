"""`nlgraft vocab` on checkpoints of seven architectures: permutation, reload, generation, one side."""

import json
import shutil

import pytest
import torch
import transformers

from tests.tensors import ties
from tests.tiny_checkpoints import (
    KINDS,
    LINES,
    OTHER_LINES,
    WORDS,
    bert_tokenizer,
    load,
    quiet,
    released,
    run,
    train_spm,
)


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request, tmp_path_factory):
    """A tiny checkpoint of each architecture, with a tokenizer of its own kind."""
    directory = tmp_path_factory.mktemp("released") / request.param
    released(directory, request.param)
    return directory


def reverse_ids(source, target):
    """The same tokenizer with its ids reversed."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "config.json", "gen*"))
    if (target / "vocab.json").is_file() and (target / "source.spm").is_file():
        ids = json.loads((target / "vocab.json").read_text())
        (target / "vocab.json").write_text(json.dumps({piece: len(ids) - 1 - i for piece, i in ids.items()}))
        return
    document = json.loads((target / "tokenizer.json").read_text())
    model, last = document["model"], len(transformers.AutoTokenizer.from_pretrained(source)) - 1
    if model["type"] == "Unigram":
        model["vocab"] = model["vocab"][::-1]
        model["unk_id"] = last - model["unk_id"]
    else:
        model["vocab"] = {piece: last - i for piece, i in model["vocab"].items()}
    for entry in document["added_tokens"]:
        entry["id"] = last - entry["id"]
    for token in (document["post_processor"] or {}).get("special_tokens", {}).values():
        token["ids"] = [last - i for i in token["ids"]]
    (target / "tokenizer.json").write_text(json.dumps(document))
    for name in ("vocab.txt", "tokenizer_config.json"):
        (target / name).unlink(missing_ok=True)
    roles = json.loads((source / "tokenizer_config.json").read_text())
    roles = {k: v for k, v in roles.items() if k.endswith("_token") or k == "model_input_names"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    (target / "tokenizer_config.json").write_text(json.dumps(config))


@torch.no_grad()
def states_and_logits(model, ids):
    if model.config.is_encoder_decoder:
        outputs = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            decoder_input_ids=ids.flip(1),
            output_hidden_states=True,
        )
        return (*outputs.encoder_hidden_states, *outputs.decoder_hidden_states), outputs.logits
    outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    return outputs.hidden_states, outputs.logits


def test_reversed_ids_change_nothing(checkpoint, tmp_path):
    """Invariant V40: all hidden states are equal, logits after re-indexing."""
    reverse_ids(checkpoint, tmp_path / "reversed")
    plan = tmp_path / "plan"
    counts = json.loads(
        run("plan", "--old", checkpoint, "--new", tmp_path / "reversed", "--out", plan, "--json").stdout
    )["counts"]
    assert set(counts) == {"copy", "special"}
    run("apply", "--plan", plan, "--model", checkpoint, "--out", tmp_path / "out")
    (before, old_tokenizer), (after, new_tokenizer) = load(checkpoint), load(tmp_path / "out")
    for line in LINES[:5]:
        old_ids, new_ids = (
            quiet(t, line, return_tensors="pt").input_ids for t in (old_tokenizer, new_tokenizer)
        )
        assert torch.equal(new_ids, len(old_tokenizer) - 1 - old_ids)
        (old_states, old_logits), (new_states, new_logits) = (
            states_and_logits(before, old_ids),
            states_and_logits(after, new_ids),
        )
        for old_layer, new_layer in zip(old_states, new_states, strict=True):
            assert torch.allclose(old_layer, new_layer, atol=1e-6)
        # rows beyond the tokenizer are dropped
        assert torch.allclose(old_logits[..., : len(old_tokenizer)], new_logits.flip(-1), atol=1e-5)
    assert ties(before) == ties(after)


@pytest.mark.parametrize("new_kind", ["sentencepiece", "wordpiece"])
def test_a_new_vocabulary_loads_encodes_and_generates(checkpoint, new_kind, tmp_path):
    """Saved, reloaded by transformers with its tokenizer, generating, verified."""
    if new_kind == "sentencepiece":
        new = train_spm(tmp_path / "new", OTHER_LINES, control_symbols=["<mask>"])
    else:
        (tmp_path / "new").mkdir()
        bert_tokenizer(tmp_path / "new", OTHER_LINES)
        new = tmp_path / "new" / "vocab.txt"
    run("plan", "--old", checkpoint, "--new", new, "--method", "fvt", "--out", tmp_path / "plan")
    applied = run(
        "apply", "--plan", tmp_path / "plan", "--model", checkpoint, "--out", tmp_path / "out", "--json"
    )
    document = json.loads(applied.stdout)
    assert run("verify", tmp_path / "out").stdout.count("ok  ") >= 7
    (before, old_tokenizer), (model, tokenizer) = load(checkpoint), load(tmp_path / "out")
    assert document["new_rows"] == model.config.vocab_size == len(tokenizer)
    assert tokenizer.model_input_names == old_tokenizer.model_input_names
    assert ties(model) == ties(before)
    inputs = tokenizer(OTHER_LINES[0], return_tensors="pt")
    assert tokenizer.decode(inputs.input_ids[0], skip_special_tokens=True).strip() == OTHER_LINES[0]
    around = quiet(old_tokenizer, "a")["input_ids"]
    new_ends = {
        old_tokenizer.eos_token_id: tokenizer.eos_token_id,
        old_tokenizer.sep_token_id: tokenizer.sep_token_id,
    }
    if new_ends.get(around[-1]) is not None:
        assert inputs.input_ids[0, -1] == new_ends[around[-1]]
    for name in ("eos", "pad"):
        configured = getattr(model.config, f"{name}_token_id")
        if getattr(before.config, f"{name}_token_id") is not None and configured is not None:
            role = {"eos": (tokenizer.eos_token_id, tokenizer.sep_token_id), "pad": (tokenizer.pad_token_id,)}
            ends = configured if isinstance(configured, list) else [configured]
            if isinstance(configured, list) and name == "eos":
                # Gemma's end of a turn, named by its configuration, comes with it.
                assert tokenizer.convert_ids_to_tokens(ends.pop()) == "<end_of_turn>"
            assert {*ends} <= {*role[name]}
    if model.can_generate():
        made = model.generate(**inputs, max_new_tokens=5, do_sample=False, pad_token_id=0)
        assert made.max() < len(tokenizer)


def test_one_side_keeps_both_tokenizers(tmp_path):
    """Decoder only: encoder rows and tokenizer stay, the decoder's lie beside, and verify checks both."""
    checkpoint = tmp_path / "marian"
    before = released(checkpoint, "marian")
    new = train_spm(tmp_path / "new", OTHER_LINES)
    run("plan", "--old", checkpoint / "target.spm", "--new", new, "--out", tmp_path / "plan")
    run(
        "apply",
        "--plan",
        tmp_path / "plan",
        "--model",
        checkpoint,
        "--out",
        tmp_path / "out",
        "--sides",
        "decoder",
    )
    after, encoder_tokenizer = load(tmp_path / "out")
    decoder_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "decoder_tokenizer")
    assert torch.equal(after.get_encoder().get_input_embeddings().weight, before.model.shared.weight)
    assert len(after.lm_head.weight) == len(decoder_tokenizer) == after.config.decoder_vocab_size
    assert type(encoder_tokenizer).__name__ == "MarianTokenizer"
    text = run("verify", tmp_path / "out").stdout
    assert "ok    encoder: ids have rows" in text
    assert "ok    decoder: ids have rows" in text
    again = train_spm(tmp_path / "again", LINES[:200], size=90)
    wrong = run("plan", "--old", checkpoint, "--new", again, "--out", tmp_path / "p2")
    assert "->" in wrong.stdout
    out = ("--out", tmp_path / "out2", "--sides", "decoder")
    refused = run("apply", "--plan", tmp_path / "p2", "--model", tmp_path / "out", *out, code=2)
    assert "not for the tokenizer of" in refused.stderr
    decoder = tmp_path / "out" / "decoder_tokenizer"
    run("plan", "--old", decoder, "--new", again, "--out", tmp_path / "p3")
    run("apply", "--plan", tmp_path / "p3", "--model", tmp_path / "out", *out)
    assert json.loads(run("verify", tmp_path / "out2", "--json").stdout)["is_good"]


@pytest.mark.parametrize("lines", [LINES[:60], LINES + OTHER_LINES + WORDS])
def test_one_side_of_a_model_with_one_size_is_verified(lines, tmp_path):
    """T5 has one size: a smaller or larger vocabulary of the decoder alone generates its own ids."""
    checkpoint = tmp_path / "t5"
    released(checkpoint, "t5")
    new = train_spm(tmp_path / "new", lines, size=60 if len(lines) == 60 else 190)
    run("plan", "--old", checkpoint, "--new", new, "--out", tmp_path / "plan")
    out = ("--out", tmp_path / "out", "--sides", "decoder")
    message = run("apply", "--plan", tmp_path / "plan", "--model", checkpoint, *out).stderr
    assert "one vocabulary size for both sides" in message
    assert json.loads(run("verify", tmp_path / "out", "--json").stdout)["is_good"]
    model, tokenizer = load(tmp_path / "out")
    size = len(transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "decoder_tokenizer"))
    made = model.generate(**tokenizer(LINES[0], return_tensors="pt"), max_new_tokens=8, do_sample=False)
    assert made.max() < size
