"""From a plan's directory to a checkpoint's: what is written, what is told."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertModel, GPT2Config, GPT2LMHeadModel

from nlgraft.basics.errors import DataError
from nlgraft.text.files import written_at_once
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab_tool.apply import apply_plan, padding_multiple
from nlgraft.vocab_tool.checkpoints import load_checkpoint
from nlgraft.vocab_tool.checks import verify_checkpoint
from nlgraft.vocab_tool.plan_exchange import PlanRequest, plan_transfer, read_text
from tests.tensors import differing
from tests.tiny_architectures import bert_config

OLD = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "motor", "##cycle", "##s"]
NEW = ["[CLS]", "[PAD]", "[UNK]", "motorcycle", "motor", "##s"]
WITHOUT_PADDING = ["[CLS]", "[SEP]", "[UNK]", "motor", "##s"]


def write_vocabulary(place, tokens):
    (place / "vocab.txt").write_text("\n".join(tokens))


@pytest.fixture
def places(tmp_path):
    """A sentence encoder and a new vocabulary without [SEP], which the configuration names."""
    torch.manual_seed(0)
    model = BertModel(bert_config(vocab_size=len(OLD), sep_token_id=3))
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    for name, tokens in (("model", OLD), ("new", NEW)):
        (tmp_path / name).mkdir(exist_ok=True)
        write_vocabulary(tmp_path / name, tokens)
    (tmp_path / "model" / "modules.json").write_text("[]")
    (tmp_path / "model" / "1_Pooling").mkdir()
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text("{}")
    (tmp_path / "model" / "secret.txt").write_text("not to be copied")
    return tmp_path


def planned(places, **options):
    """Plan the exchange of the model's vocabulary."""
    request = PlanRequest(old=str(places / "model"), new=str(places / "new"), **options)
    return plan_transfer(request, places / "plan")


def applied(places, out="out", **options):
    """Carry out that plan."""
    return apply_plan(places / "plan", str(places / "model"), places / out, **options)


def test_a_checkpoint_is_written_with_all_that_belongs_to_it(places):
    plan = planned(places, keep_special="none")
    result = applied(places)
    written = {path.name for path in (places / "out").iterdir()}
    assert {"modules.json", "1_Pooling", "tokenizer.json", "config.json", "model.safetensors"} <= written
    assert "secret.txt" not in written
    assert load_checkpoint(places / "out").dtype == torch.bfloat16
    assert (result.old_rows, result.new_rows) == (7, 6)
    assert (result.old_parameters, result.new_parameters) == (56, 48)
    assert any("no token for sep_token_id 3 of the configuration" in note for note in result.notes)
    assert any("that the new tokenizer lacks: 1" in note for note in result.notes)
    assert AutoTokenizer.from_pretrained(places / "out")("motorcycle")["input_ids"] == [0, 3]
    assert plan.to_json()["counts"] == {"copy": 2, "special": 3, "composed": 1}
    assert "vocabulary parameters 56 -> 48" in result.to_text()


def test_a_plan_for_another_tokenizer_is_refused(places):
    planned(places)
    write_vocabulary(places / "model", [*OLD[:5], "##xx", "##s"])
    with pytest.raises(DataError, match=r"id 5 is '##cycle' in the plan and '##xx' in the model's"):
        applied(places)
    write_vocabulary(places / "model", OLD[:6])
    with pytest.raises(DataError, match="has 7 old ids, the model's tokenizer 6"):
        applied(places)


def test_a_checkpoint_in_the_old_format_is_converted(places):
    """Weights that only PyTorch reads give the same checkpoint as safetensors."""
    planned(places)
    applied(places, multiple=4)
    weights = places / "model" / "model.safetensors"
    torch.save(load_file(weights), places / "model" / "pytorch_model.bin")
    weights.unlink()
    result = applied(places, "out2", multiple=4)
    assert not differing(*(load_file(places / out / "model.safetensors") for out in ("out", "out2")))
    assert result.new_rows == 8
    assert any("the whole model was loaded" in note for note in result.notes)
    assert {path.name for path in places.iterdir()} == {"model", "new", "plan", "out", "out2"}


@pytest.mark.parametrize(
    ("rows", "tokens", "multiple"),
    [
        (151_936, 151_669, 128),
        (32_128, 32_100, 128),
        (32_064, 32_011, 64),
        (32_000, 32_000, 1),
        (65_536, 65_000, 128),
        (360, 350, 1),
        (360, 353, 8),
    ],
)
def test_the_multiple_of_a_table_is_found(rows, tokens, multiple):
    """Qwen3, T5 and Phi-3; Llama-2 has no row without a token."""
    assert padding_multiple(rows, tokens) == multiple


def test_a_filled_table_stays_filled(places):
    """Seven tokens in 16 rows become six tokens in 16 rows, unless told otherwise."""
    BertModel(bert_config(vocab_size=16)).save_pretrained(places / "model")
    planned(places)
    rows = {
        name: applied(places, name, multiple=multiple).new_rows
        for name, multiple in (("kept", None), ("none", 1), ("eight", 8))
    }
    assert rows == {"kept": 16, "none": 6, "eight": 8}


def test_a_plan_made_in_python_has_no_tokenizer(places):
    plan = build_plan(load_vocabulary(places / "model"), load_vocabulary(places / "new"), "avg")
    plan.save(places / "plan")
    assert any("no tokenizer beside it" in note for note in applied(places).notes)
    assert not (places / "out" / "tokenizer.json").exists()


def test_vectors_for_one_table_of_two_are_told(places):
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 2, "eos_token_id": 3}
    shutil.rmtree(places / "model")
    untied = GPT2Config(vocab_size=len(OLD), tie_word_embeddings=False, **sizes)
    GPT2LMHeadModel(untied).save_pretrained(places / "model")
    write_vocabulary(places / "model", OLD)
    plan = planned(places, method="reconstruction", model=str(places / "model"))
    assert plan.report.norms is not None
    assert any("the untied output table gets the same" in note for note in applied(places).notes)


def test_a_lost_padding_token_is_reported_and_fails_verification(places):
    """A BERT without a padding token loads and encodes, but no batch of two lengths can be made."""
    write_vocabulary(places / "new", WITHOUT_PADDING)
    plan = planned(places, keep_special="none")
    assert plan.to_json()["lost_roles"] == {"pad": "[PAD]"}
    assert plan.report.warnings == [
        "the new tokenizer has no pad token, the old one has '[PAD]': batches cannot be padded; add one to "
        "the new tokenizer if the model needs it"
    ]
    applied(places)
    checks = {check.name: check for check in verify_checkpoint(places / "out")}
    bad = [name for name, check in checks.items() if not check.is_good]
    assert bad == ["pads a batch", "named ids have tokens"]
    assert "pad_token_id: [PAD]" in checks["named ids have tokens"].detail
    assert "no padding token" in checks["pads a batch"].detail


def test_a_lost_padding_token_that_the_configuration_names_is_appended(places):
    write_vocabulary(places / "new", WITHOUT_PADDING)
    assert planned(places).report.warnings == []
    applied(places)
    assert all(check.is_good for check in verify_checkpoint(places / "out"))
    assert AutoTokenizer.from_pretrained(places / "out").pad_token == "[PAD]"


def test_a_substituted_role_is_not_lost(places):
    write_vocabulary(places / "new", ["<s>", "</s>", "<pad>", "<unk>", "motor"])
    assert planned(places).report.lost_roles == {}


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
    def write_half():
        with written_at_once(tmp_path / "a" / "out") as directory:
            (directory / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert [*(tmp_path / "a").iterdir()] == []
    (tmp_path / "b").mkdir()
    with written_at_once(tmp_path / "b") as directory:
        (directory / "whole").write_text("x")
    assert [path.name for path in tmp_path.glob("b/*")] == ["whole"]


def test_text_is_read_and_refused_in_words(tmp_path):
    (tmp_path / "a").write_text("one\n\ntwo\u2028three\n")
    assert read_text([tmp_path / "a"]) == ["one", "two\u2028three"]
    (tmp_path / "b").write_text("\n")
    with pytest.raises(DataError, match="contains no text"):
        read_text([tmp_path / "b"])
    (tmp_path / "c.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="not a gzip file"):
        read_text([tmp_path / "c.gz"])
