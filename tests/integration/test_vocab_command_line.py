"""`nlgraft vocab` as a person uses it: plan, apply, verify, diff; five architectures and their tokenizers."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
import torch
import transformers
from click.testing import CliRunner
from tokenizers import decoders, models, pre_tokenizers, trainers

from nlgraft.cli import main
from nlgraft.vocab.plan import TransferPlan

ROOT = Path(__file__).parents[2]
rng = random.Random(3)
STEMS = ["".join(rng.choices("abdeiklmnorstu", k=rng.randint(2, 5))) for _ in range(40)]
WORDS = ["".join(rng.choices(STEMS, k=rng.randint(1, 3))) for _ in range(150)]
LINES = [" ".join(rng.choices(WORDS, k=8)) for _ in range(300)]
OTHER_LINES = [" ".join(rng.choices(STEMS + WORDS[:40], k=8)) for _ in range(300)]
SIZES = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
SIZES |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
SIZES |= {f"{side}_ffn_dim": 16 for side in ("encoder", "decoder")}
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LANGUAGES = ["en_XX", "de_DE"]


def run(*arguments: str | Path, code: int = 0):
    result = CliRunner().invoke(main, ["vocab", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit | None)
    return result


def train_spm(prefix: Path, lines, size: int = 120, **options) -> Path:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(prefix),
        vocab_size=size,
        num_threads=1,
        minloglevel=2,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        hard_vocab_limit=False,
        **options,
    )
    return prefix.with_suffix(".model")


def bert_tokenizer(directory: Path, lines) -> None:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=BERT_SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    ids = tokenizer.get_vocab()
    (directory / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.__getitem__)) + "\n")
    transformers.BertTokenizer(vocab=ids).save_pretrained(directory)


def gpt2_tokenizer(directory: Path, lines) -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=["<|endoftext|>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    fast.save_pretrained(directory)


def marian_tokenizer(directory: Path, lines) -> None:
    model = train_spm(directory / "x", lines)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [processor.id_to_piece(i) for i in range(4, processor.get_piece_size())]
    ids = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}  # as released ones are
    (directory / "vocab.json").write_text(json.dumps(ids))
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(model, directory / name)
    for leftover in ("x.model", "x.vocab"):
        (directory / leftover).unlink()
    config = {"tokenizer_class": "MarianTokenizer", "model_max_length": 64}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def unigram_tokenizer(directory: Path, lines, specials=()) -> None:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    names = ["<s>", "<pad>", "</s>", "<unk>", *specials]
    trainer = trainers.UnigramTrainer(
        vocab_size=130, special_tokens=names, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    if specials:  # mBART: text, end, language
        ids = {name: tokenizer.token_to_id(name) for name in ("</s>", specials[0])}
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"$A </s> {specials[0]}", pair=f"$A $B </s> {specials[0]}", special_tokens=[*ids.items()]
        )
    else:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
        )
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **roles
    )
    fast.save_pretrained(directory)


def bert(ids):
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=len(ids),
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=64,
            pad_token_id=ids["[PAD]"],
        )
    )


def gpt2(ids):
    end = ids["<|endoftext|>"]
    config = transformers.GPT2Config(
        vocab_size=len(ids), n_embd=8, n_layer=1, n_head=2, n_positions=64, bos_token_id=end, eos_token_id=end
    )
    return transformers.GPT2LMHeadModel(config)


def marian(ids):
    special = {"pad_token_id": ids["<pad>"], "decoder_start_token_id": ids["<pad>"]}
    special |= {"eos_token_id": ids["</s>"], "forced_eos_token_id": ids["</s>"], "bos_token_id": None}
    model = transformers.MarianMTModel(transformers.MarianConfig(vocab_size=len(ids), **SIZES, **special))
    model.final_logits_bias.normal_()
    return model


def mbart(ids):
    special = {"pad_token_id": ids["<pad>"], "eos_token_id": ids["</s>"], "bos_token_id": ids["<s>"]}
    special |= {"decoder_start_token_id": ids["de_DE"], "forced_eos_token_id": ids["</s>"]}
    config = transformers.MBartConfig(vocab_size=len(ids), **SIZES, **special)
    return transformers.MBartForConditionalGeneration(config)


def t5(ids):
    special = {"pad_token_id": ids["<pad>"], "eos_token_id": ids["</s>"]}
    special |= {"decoder_start_token_id": ids["<pad>"]}
    config = transformers.T5Config(
        vocab_size=len(ids), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, **special
    )
    return transformers.T5ForConditionalGeneration(config)


KINDS = {
    "bert": (bert_tokenizer, bert),
    "gpt2": (gpt2_tokenizer, gpt2),
    "marian": (marian_tokenizer, marian),
    "mbart": (lambda directory, lines: unigram_tokenizer(directory, lines, LANGUAGES), mbart),
    "t5": (unigram_tokenizer, t5),
}


def quiet(action, *arguments, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*sacremoses")
        return action(*arguments, **options)


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request, tmp_path_factory):
    """A tiny checkpoint of each architecture, with a tokenizer of its own kind."""
    directory = tmp_path_factory.mktemp(request.param)
    make_tokenizer, make_model = KINDS[request.param]
    make_tokenizer(directory, LINES)
    torch.manual_seed(0)
    model = make_model(quiet(transformers.AutoTokenizer.from_pretrained, directory).get_vocab())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return directory


def reverse_ids(source: Path, target: Path) -> None:
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


def load(directory: Path):
    config = transformers.AutoConfig.from_pretrained(directory)
    model = getattr(transformers, config.architectures[0]).from_pretrained(directory)
    return model.eval(), quiet(transformers.AutoTokenizer.from_pretrained, directory)


@torch.no_grad()
def states_and_logits(model, ids):
    if model.config.is_encoder_decoder:
        found = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            decoder_input_ids=ids.flip(1),
            output_hidden_states=True,
        )
        return (*found.encoder_hidden_states, *found.decoder_hidden_states), found.logits
    found = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    return found.hidden_states, found.logits


def test_reversed_ids_change_nothing(checkpoint, tmp_path):
    """Number 40 and acceptance d: all hidden states are equal, logits after re-indexing."""
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
        for one, other in zip(old_states, new_states, strict=True):
            assert torch.allclose(one, other, atol=1e-6)
        assert torch.allclose(old_logits, new_logits.flip(-1), atol=1e-5)
    assert ties(before) == ties(after)


def ties(model):
    groups = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(tensor.data_ptr(), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


@pytest.mark.parametrize("new_kind", ["sentencepiece", "wordpiece"])
def test_a_new_vocabulary_loads_encodes_and_generates(checkpoint, new_kind, tmp_path):
    """Acceptance d: saved, reloaded by transformers with its tokenizer, generating, verified."""
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
    known = {
        old_tokenizer.eos_token_id: tokenizer.eos_token_id,
        old_tokenizer.sep_token_id: tokenizer.sep_token_id,
    }
    if known.get(around[-1]) is not None:
        assert inputs.input_ids[0, -1] == known[around[-1]]
    for name in ("eos", "pad"):
        configured = getattr(model.config, f"{name}_token_id")
        if getattr(before.config, f"{name}_token_id") is not None and configured is not None:
            role = {"eos": (tokenizer.eos_token_id, tokenizer.sep_token_id), "pad": (tokenizer.pad_token_id,)}
            assert configured in role[name]
    if model.can_generate():
        made = model.generate(**inputs, max_new_tokens=5, do_sample=False, pad_token_id=0)
        assert made.max() < len(tokenizer)


def test_one_side_keeps_both_tokenizers(tmp_path):
    """Decoder only: encoder rows and tokenizer stay, the decoder's lie beside, and verify checks both."""
    checkpoint = tmp_path / "marian"
    checkpoint.mkdir()
    marian_tokenizer(checkpoint, LINES)
    torch.manual_seed(0)
    before = marian(json.loads((checkpoint / "vocab.json").read_text()))
    before.save_pretrained(checkpoint)
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
    checkpoint.mkdir()
    unigram_tokenizer(checkpoint, LINES)
    torch.manual_seed(0)
    t5(transformers.AutoTokenizer.from_pretrained(checkpoint).get_vocab()).save_pretrained(checkpoint)
    new = train_spm(tmp_path / "new", lines, size=60 if len(lines) == 60 else 190)
    run("plan", "--old", checkpoint, "--new", new, "--out", tmp_path / "plan")
    out = ("--out", tmp_path / "out", "--sides", "decoder")
    told = run("apply", "--plan", tmp_path / "plan", "--model", checkpoint, *out).stderr
    assert "one vocabulary size for both sides" in told
    assert json.loads(run("verify", tmp_path / "out", "--json").stdout)["is_good"]
    model, tokenizer = load(tmp_path / "out")
    size = len(transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "decoder_tokenizer"))
    made = model.generate(**tokenizer(LINES[0], return_tensors="pt"), max_new_tokens=8, do_sample=False)
    assert made.max() < size


@pytest.fixture(scope="module")
def bert_checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert")
    bert_tokenizer(directory, LINES)
    torch.manual_seed(0)
    bert(transformers.AutoTokenizer.from_pretrained(directory).get_vocab()).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def new_model(tmp_path_factory):
    return train_spm(tmp_path_factory.mktemp("new") / "new", OTHER_LINES, control_symbols=["<mask>"])


METHODS = [
    "random",
    "mean",
    "hewitt",
    "avg",
    "fvt",
    "wvt",
    "reconstruction",
    "word2vec",
    "cbow",
    "focus",
    "wechsel",
]


def test_every_method_by_name(bert_checkpoint, new_model, tmp_path):
    """What a method needs beyond the tokenizers is asked for, then used."""
    listed = json.loads(run("methods", "--json").stdout)
    assert [row["method"] for row in listed] == METHODS
    text = tmp_path / "text.txt"
    text.write_text("\n".join(OTHER_LINES[:100]))
    base = ("plan", "--old", bert_checkpoint, "--new", new_model)
    for row in listed:
        extra = ("--text", text, "--epochs", 1) if "text" in row["needs"] else ()
        if extra and "the model" not in row["needs"]:
            extra = (*extra, "--width", 12)
        if "text" in row["needs"]:
            assert "--text" in run(*base, "--method", row["method"], code=2).stderr
        if "the model" in row["needs"]:
            assert "--model" in run(*base, "--method", row["method"], *extra, code=2).stderr
            extra = (*extra, "--model", bert_checkpoint)
        plan = tmp_path / row["method"]
        run(*base, "--method", row["method"], *extra, "--out", plan)
        assert run("diff", plan, plan).stdout == ""
    out = tmp_path / "applied"
    run("apply", "--plan", tmp_path / "cbow", "--model", bert_checkpoint, "--out", out)
    run("verify", out)


def test_dry_run_reports_and_writes_nothing(bert_checkpoint, new_model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(OTHER_LINES[:50]))
    arguments = (
        "plan",
        "--old",
        bert_checkpoint,
        "--new",
        new_model,
        "--text",
        text,
        "--model",
        bert_checkpoint,
    )
    document = json.loads(run(*arguments, "--json").stdout)
    assert document["plan"] is None
    assert document["text"]["num_lines"] == 50
    processor = sentencepiece.SentencePieceProcessor(model_file=str(new_model))
    assert document["text"]["new_tokens"] == sum(len(processor.encode(line)) for line in OTHER_LINES[:50])
    assert document["text"]["new_fertility"] == document["text"]["new_tokens"] / 400
    assert sum(document["reasons"].values()) == document["num_new"] == processor.get_piece_size()
    assert document["norms"]["old_median"] > 0
    assert 0 < document["overlap"] < 1
    assert document["worst"]
    lines = run(*arguments).stdout
    assert "tokens per word" in lines
    assert "median row norms" in lines
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_options_reach_the_plan(tmp_path):
    """Each option changes the plan as it says: cap, order, noise, norms."""
    longer = [f"abc{letter}" for letter in "zyxwvutsrqpo"]
    for name, tokens in (("old", ["ab", "##c", *longer]), ("new", ["abc", "ß"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("\n".join(["[PAD]", "[CLS]", "[UNK]", *tokens]))
    text = tmp_path / "text.txt"
    text.write_text("abco abco abcp")
    plans = {
        "base": (),
        "cap": ("--cap", "1"),
        "all": ("--cap", "all"),
        "order": ("--cap", 4, "--order", "frequency", "--text", text),
        "random": ("--method", "random"),
        "seed": ("--method", "random", "--seed", 5),
        "std": ("--method", "random", "--noise-std", 0.5),
        "norm": ("--norm-match", "class"),
    }
    told, settings = {}, {}
    for name, options in plans.items():
        arguments = ("--old", tmp_path / "old", "--new", tmp_path / "new", "--out", tmp_path / name)
        run("plan", *arguments, *options)
        told[name] = TransferPlan.load(tmp_path / name).describe(3).rpartition(" = ")[2].split(" + ")
        settings[name] = json.loads((tmp_path / name / "plan.json").read_text())
    assert [len(told[name]) for name in ("base", "cap", "all", "order")] == [10, 2, 14, 4]
    assert told["base"][2:] == [f"0.1 {word}" for word in longer[:8]]
    assert told["order"] == ["0.25 ab", "0.25 ##c", "0.25 abco", "0.25 abcp"]
    assert settings["random"]["noise"] == {"center": "zero", "spread": "fixed", "scale": 0.02, "seed": 0}
    assert settings["seed"]["noise"]["seed"] == 5
    assert settings["std"]["noise"]["scale"] == 0.5
    assert settings["norm"]["norm_match"] == "class"
    different = run("diff", tmp_path / "base", tmp_path / "cap", code=1)
    assert different.stdout.splitlines()[1].startswith("+ abc: composed (2 subwords, 0 hyperwords) = 0.5 ab")
    assert different.stderr == "1 rows differ\n"


def test_case_is_matched_when_asked(tmp_path):
    for name, tokens in (("old", ["motor", "##s"]), ("new", ["Motor", "motor"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("\n".join(["[PAD]", "[CLS]", *tokens]))
    base = ("plan", "--old", tmp_path / "old", "--new", tmp_path / "new", "--json")
    assert json.loads(run(*base).stdout)["counts"]["copy"] == 2
    assert json.loads(run(*base, "--match-case").stdout)["counts"]["copy"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "--old", "nothing.json", "--new", "nothing.json"], "no such file"),
        (["plan", "--old", "OLD", "--new", "NEW", "--method", "avgg"], "Did you mean 'avg'"),
        (["plan", "--old", "OLD", "--new", "NEW", "--cap", "0"], "a number from 1, or all"),
        (["plan", "--old", "OLD", "--new", "NEW", "--out", "OLD"], "not empty"),
        (["plan", "--old", "OLD", "--new", "NEW", "--order", "frequency"], "--text"),
        (["plan", "--old", "OLD", "--new", "NEW", "--text", "nothing.txt"], "nothing.txt"),
        (["plan", "--old", "OLD", "--new", "NEW", "--old-codes", "NEW"], "codes"),
        (["plan", "--old", "OLD", "--new", "NEW", "--model", "EMPTY"], "not a checkpoint"),
        (["plan", "--old", "EMPTY", "--new", "NEW"], "no tokenizer found"),
        (["apply", "--plan", "EMPTY", "--model", "OLD", "--out", "fresh"], "no plan here"),
        (["apply", "--plan", "PLAN", "--model", "EMPTY", "--out", "fresh"], "not a checkpoint"),
        (["apply", "--plan", "PLAN", "--model", "OLD", "--out", "OLD"], "not empty"),
        (
            ["apply", "--plan", "PLAN", "--model", "OLD", "--out", "fresh", "--sides", "decoder"],
            "one vocabulary",
        ),
        (["apply", "--plan", "BACK", "--model", "OLD", "--out", "fresh"], "not for the tokenizer of"),
        (["apply", "--plan", "BROKEN", "--model", "OLD", "--out", "fresh"], "cannot be read"),
        (["verify", "EMPTY"], "not a checkpoint"),
        (["diff", "PLAN", "EMPTY"], "no plan here"),
    ],
)
def test_bad_input_is_told_in_words(arguments, said, bert_checkpoint, new_model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    places = {"OLD": str(bert_checkpoint), "NEW": str(new_model)}
    places |= {name: str(tmp_path / name.lower()) for name in ("EMPTY", "PLAN", "BACK", "BROKEN")}
    (tmp_path / "empty").mkdir()
    if "PLAN" in arguments:
        run("plan", "--old", places["OLD"], "--new", places["NEW"], "--out", places["PLAN"])
    if "BACK" in arguments:
        run("plan", "--old", places["NEW"], "--new", places["OLD"], "--out", places["BACK"])
    if "BROKEN" in arguments:
        run("plan", "--old", places["OLD"], "--new", places["NEW"], "--out", places["BROKEN"])
        (tmp_path / "broken" / "plan.safetensors").write_bytes(b"x")
    result = run(*(places.get(argument, argument) for argument in arguments), code=2)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "fresh").exists()


def test_verify_fails_when_something_is_wrong(bert_checkpoint, tmp_path):
    shutil.copytree(bert_checkpoint, tmp_path / "broken")
    model, _ = load(tmp_path / "broken")
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[3] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    assert "FAIL  rows are sound" in run("verify", tmp_path / "broken", code=1).stdout


def test_planning_needs_no_torch(bert_checkpoint, new_model):
    heavy = ("torch", "transformers", "ray", "mlflow")
    check = f"import sys; print('HEAVY', [m for m in {heavy} if m in sys.modules])"
    arguments = ["vocab", "plan", "--old", str(bert_checkpoint), "--new", str(new_model)]
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from nlgraft.cli import main; main({arguments}, standalone_mode=False); {check}",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        env={"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )
    assert "HEAVY []" in ran.stdout
