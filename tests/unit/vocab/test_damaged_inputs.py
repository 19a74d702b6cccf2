"""`nlgraft vocab` on damaged or hostile files: a sentence and exit 2, whatever they hold."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from nlgraft.commands.main import main
from tests.tiny_causal_lms import release
from tests.tiny_checkpoints import edit, run


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return release(tmp_path_factory.mktemp("released") / "bert", "bert")


@pytest.fixture
def checkpoint(bert, tmp_path):
    return Path(shutil.copytree(bert, tmp_path / "checkpoint"))


def refused(*arguments):
    """The message of a command that refuses its input."""
    return run(*arguments, code=2).output


@pytest.mark.parametrize("content", [pickle.dumps({"weight": Path("x")}, protocol=2), b"", b"\x80\x02broken"])
@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_weights_that_are_no_tensors(checkpoint, command, content):
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(content)
    assert "not a checkpoint that transformers can load" in refused(command, checkpoint)


@pytest.mark.parametrize("size", [10**12, 0, -1])
@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_a_vocabulary_size_is_bounded_before_memory_is_taken(checkpoint, command, size):
    edit(checkpoint / "config.json", vocab_size=size)
    message = refused(command, checkpoint)
    assert f"vocab_size of config.json is {size}, allowed is 1 to 16,777,216" in message


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (-1, "has id -1, allowed is 0 to 16,777,215"),
        (1 << 40, "has id 1099511627776, allowed is 0 to 16,777,215"),
        ("7", "has id '7', allowed is 0 to"),
        (0, "have the same id 0"),
    ],
)
def test_ids_of_a_tokenizer(checkpoint, tmp_path, identity, message):
    path = checkpoint / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    model["vocab"]["zzz"] = identity
    edit(path, model=model)
    (tmp_path / "text").write_text("a\n")
    assert message in refused("plan", "--old", checkpoint, "--new", checkpoint, "--out", tmp_path / "plan")
    prune = ["prune", checkpoint, "--text", tmp_path / "text", "--out", tmp_path / "pruned"]
    assert message in refused(*prune)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(", "the library `tokenizers` cannot read it"),
        ("(a+)+$", "regular expression that tries too many ways"),
    ],
)
def test_a_regular_expression_that_is_none_or_tries_too_many_ways(checkpoint, tmp_path, expression, message):
    pattern = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    edit(checkpoint / "tokenizer.json", pre_tokenizer=pattern)
    (tmp_path / "text").write_text("a" * 40 + "!\n")
    out = tmp_path / "pruned"
    assert message in refused("prune", checkpoint, "--text", tmp_path / "text", "--out", out)
    for command in ("doctor", "verify"):
        done = CliRunner().invoke(main, ["vocab", command, str(checkpoint)])
        assert isinstance(done.exception, SystemExit | None), done.exception


def test_what_turns_a_terminal_s_text_around_is_escaped(checkpoint):
    path = checkpoint / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    model["vocab"]["\u202ezzz\x1b[31m"] = 0
    edit(path, model=model)
    message = refused("plan", "--old", checkpoint, "--new", checkpoint, "--out", checkpoint / "plan")
    assert "zzz" in message
    assert not {"\u202e", "\x1b"} & {*message}
