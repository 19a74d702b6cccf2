"""`nlgraft vocab` as a person uses it: methods, reports, options, mistakes."""

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
import torch

from nlgraft.vocab.methods.registry import METHODS
from nlgraft.vocab.transfer_plan import TransferPlan
from tests.processes import python
from tests.tiny_causal_lms import release
from tests.tiny_checkpoints import (
    OTHER_LINES,
    load,
    run,
    train_spm,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bert_checkpoint(tmp_path_factory):
    return release(tmp_path_factory.mktemp("released") / "bert", "bert")


@pytest.fixture(scope="module")
def new_model(tmp_path_factory):
    return train_spm(tmp_path_factory.mktemp("new") / "new", OTHER_LINES, control_symbols=["<mask>"])


def test_every_method_by_name(bert_checkpoint, new_model, tmp_path):
    """Inputs that a method needs beyond the tokenizers are required, then used."""
    listed = json.loads(run("methods", "--json").stdout)
    assert [row["method"] for row in listed] == [method.name for method in METHODS]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(OTHER_LINES[:100]))
    base = ("plan", "--old", bert_checkpoint, "--new", new_model)
    for row in listed:
        extra = ("--text", text, "--epochs", 1) if "text" in row["needs"] else ()
        if "text" in row["needs"]:
            assert "--text" in run(*base, "--method", row["method"], code=2).stderr
        if "the model" in row["needs"]:
            assert "--model" in run(*base, "--method", row["method"], *extra, code=2).stderr
            extra = (*extra, "--model", bert_checkpoint)
        if "a donor" in row["needs"]:
            assert "--donor" in run(*base, "--method", row["method"], *extra, code=2).stderr
            extra = (*extra, "--donor", bert_checkpoint)
        plan = tmp_path / row["method"]
        run(*base, "--method", row["method"], *extra, "--out", plan)
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
        "random": ("--method", "random"),
        "seed": ("--method", "random", "--seed", 5),
    }
    rows, settings = {}, {}
    for name, options in plans.items():
        arguments = ("--old", tmp_path / "old", "--new", tmp_path / "new", "--out", tmp_path / name)
        run("plan", *arguments, *options)
        rows[name] = TransferPlan.load(tmp_path / name).describe(3).rpartition(" = ")[2].split(" + ")
        settings[name] = json.loads((tmp_path / name / "plan.json").read_text())
    assert [len(rows[name]) for name in ("base", "cap", "all")] == [10, 2, 14]
    assert rows["base"][2:] == [f"0.1 {word}" for word in longer[:8]]
    assert settings["random"]["noise"] == {"center": "zero", "spread": "fixed", "scale": 0.02, "seed": 0}
    assert settings["seed"]["noise"]["seed"] == 5


EXCHANGE = ("plan", "--old", "OLD", "--new", "NEW")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--old", "nothing.json", "--new", "nothing.json"], "no such file"),
        ([*EXCHANGE, "--method", "avgg"], "Did you mean 'avg'"),
        ([*EXCHANGE, "--cap", "0"], "a number from 1, or all"),
        ([*EXCHANGE, "--method", "vipi", "--cap", "3"], "does not read --cap"),
        ([*EXCHANGE, "--out", "OLD"], "not empty"),
        ([*EXCHANGE, "--method", "focus"], "--text"),
        ([*EXCHANGE, "--text", "nothing.txt"], "nothing.txt"),
        ([*EXCHANGE, "--model", "EMPTY"], "not a checkpoint"),
        (["plan", "--old", "EMPTY", "--new", "NEW"], "no tokenizer found"),
        (["plan", "--old", "OLD", "--new", "train.en"], "looks like text; train a tokenizer"),
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
    ],
)
def test_bad_input_is_explained(arguments, message, bert_checkpoint, new_model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    places = {"OLD": str(bert_checkpoint), "NEW": str(new_model)}
    places |= {name: str(tmp_path / name.lower()) for name in ("EMPTY", "PLAN", "BACK", "BROKEN")}
    (tmp_path / "empty").mkdir()
    (tmp_path / "train.en").write_text("A man walks.\n")
    if "PLAN" in arguments:
        run("plan", "--old", places["OLD"], "--new", places["NEW"], "--out", places["PLAN"])
    if "BACK" in arguments:
        run("plan", "--old", places["NEW"], "--new", places["OLD"], "--out", places["BACK"])
    if "BROKEN" in arguments:
        run("plan", "--old", places["OLD"], "--new", places["NEW"], "--out", places["BROKEN"])
        (tmp_path / "broken" / "plan.safetensors").write_bytes(b"x")
    result = run(*(places.get(argument, argument) for argument in arguments), code=2)
    assert message in result.stderr
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
    code = f"from nlgraft.commands.main import main; main({arguments}, standalone_mode=False); {check}"
    environment = {"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}", "PATH": "/usr/bin:/bin"}
    ran = python("-c", code, cwd=ROOT, env=environment)
    assert "HEAVY []" in ran.stdout
