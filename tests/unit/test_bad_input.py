"""Every command ends bad input in one sentence and exit code 2: long names, deep JSON, pipes, places."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from nlgraft.commands.main import main
from nlgraft.commands.terminal import plain_table

STUDY = str(Path("examples/minimal_system/study.yaml").absolute())
LONG, VARIANT, NESTED = "x" * 5000, "demo@" + "v" * 300, '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
FIFOS = ("pipe", "piped_plan/plan.json", "piped_weights/plan.safetensors", "piped_model/nlgraft.json")
CLASSIFIER = {"task": "classification", "trial": "x", "tokenizers": {"text": "tokenizers/0"}}
FILES = {
    "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n",
    "words.txt": "a 3\nb@@ 2\n",
    "lines.txt": "a b\n",
    "deep_plan/plan.json": NESTED,
    "piped_weights/plan.json": "{}",
    "deep_tokenizer/tokenizer.json": NESTED,
    "deep_model/config.json": NESTED,
    "deep_settings/config.json": '{"model_type": "bert"}',
    "deep_settings/tokenizer_config.json": NESTED,
    "deep_index/config.json": '{"model_type": "bert"}',
    "deep_index/model.safetensors.index.json": NESTED,
    "deep_export/nlgraft.json": NESTED,
    "list_model/config.json": "[]",
    "classifier/nlgraft.json": json.dumps(CLASSIFIER),
    "deep_classifier/nlgraft.json": json.dumps(CLASSIFIER),
    "deep_classifier/nlgraft/model/classifier.json": NESTED,
    "translator/nlgraft.json": json.dumps(CLASSIFIER | {"task": "translation"}),
    "piped_model/nlgraft/x": "",
}
PLAN = ("vocab", "plan", "--old", "vocab.txt", "--new")
INIT = ("init", "prlm_fusion", "--source", "lines.txt", "--target", "lines.txt")


def ends_in_a_sentence(arguments, directory):
    done = CliRunner().invoke(main, list(arguments), input="a\n", catch_exceptions=False)
    assert done.exit_code == 2, done.output
    assert 0 < len(done.output) < 1500 or "Usage:" in done.output, done.output
    assert not any(directory.glob("out*"))


@pytest.fixture
def directory(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in FIFOS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "no_system").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [LONG, VARIANT, "n" * 300 + "/study.yaml"])
@pytest.mark.parametrize(
    "command",
    [
        *("validate", "plan", "run", "trial", "status", "report", "config", "register", "rm", "logs"),
        *("export --out out", "pack --out out.zip", "unpack --out out", f"diff {STUDY}", "check", "classify"),
        *("compare lines.txt --ref lines.txt", "ls --storage", "schema", "vocab doctor"),
    ],
)
def test_a_name_that_no_file_can_have(directory, command, name):
    if (command, name) != ("ls --storage", VARIANT):
        ends_in_a_sentence([*command.split(), name], directory)


@pytest.mark.parametrize(
    "arguments",
    [
        ("vocab", "apply", "--plan", "deep_plan", "--model", "m", "--out", "out"),
        ("vocab", "apply", "--plan", "piped_plan", "--model", "m", "--out", "out"),
        ("vocab", "apply", "--plan", "piped_weights", "--model", "m", "--out", "out"),
        (*PLAN, "deep_tokenizer"),
        (*PLAN, "vocab.txt", "--model", "deep_model"),
        ("vocab", "verify", "deep_index"),
        ("vocab", "doctor", "deep_index"),
        (*INIT, "--checkpoint", "deep_model"),
        (*INIT, "--checkpoint", "deep_settings"),
        (*INIT, "--checkpoint", "list_model"),
        (*INIT, "--out", f"{LONG}.yaml"),
        ("classify", "classifier"),
        ("classify", "deep_classifier"),
        ("classify", "deep_export"),
        ("classify", "piped_model"),
        ("translate", "translator"),
        ("translate", "piped_model"),
        ("compare", "circle", "lines.txt", "--ref", "lines.txt"),
        ("init", "prlm_fusion", "--source", "circle", "--target", "lines.txt"),
        ("validate", "circle"),
        ("schema", "no_system"),
        ("schema", "a." * 2000 + "a"),
        ("run", STUDY, "--storage", "store", "--tracking-uri", "sqlite:///circle"),
    ],
    ids=" ".join,
)
def test_a_foreign_file(directory, arguments):
    ends_in_a_sentence(arguments, directory)


@pytest.mark.parametrize("address", ["nonsense", "", "::::", "ray://", "http://", "127.0.0.1:99999999", LONG])
@pytest.mark.parametrize("command", ["run", "status", "logs", "stop", "submit"])
def test_an_address_that_is_none(directory, command, address):
    ends_in_a_sentence([command, STUDY, "--storage", "out", "--address", address], directory)


@pytest.mark.parametrize("uri", ["http://", "https:///x", "http://[", LONG])
def test_a_tracking_uri_that_is_none(directory, uri):
    ends_in_a_sentence(["run", STUDY, "--storage", "store", "--tracking-uri", uri], directory)


@pytest.mark.parametrize(
    "storage", ["/dev/null/store", "lines.txt/store", "s3://", "s3://[", "az://bucket/prefix"]
)
@pytest.mark.parametrize("command", ["ls", "gc", f"run {STUDY}", f"status {STUDY}", f"trial {STUDY}"])
def test_a_place_below_a_file_or_nowhere(directory, command, storage):
    ends_in_a_sentence([*command.split(), "--storage", storage], directory)


@pytest.mark.parametrize("command", ["ls", f"status {STUDY}"])
def test_a_bucket_without_credentials(directory, monkeypatch, command):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    ends_in_a_sentence([*command.split(), "--storage", "s3://bucket/prefix"], directory)


def test_brackets_in_a_table_are_text(capsys):
    plain_table(("system", "name"), [("[/x]", "[red]a[/red]")])
    assert {"[/x]", "[red]a[/red]"} <= set(capsys.readouterr().out.split())
