"""Verification of checkpoints on disk: weights, rows, padding, architectures."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertForMaskedLM,
)

from nlgraft.basics.errors import DataError
from nlgraft.vocab.tokenizers.loading import wordpiece_json
from nlgraft.vocab_tool.checkpoints import load_checkpoint
from nlgraft.vocab_tool.checks import verify_checkpoint
from nlgraft.vocab_tool.plan_exchange import EXCHANGE_RECORD
from tests.commands import nlgraft
from tests.tiny_architectures import (
    V,
    bert_config,
)


def saved_bert(place):
    torch.manual_seed(0)
    model = BertForMaskedLM(bert_config())
    model.save_pretrained(place)
    return model


def checks_of(place):
    return {check.name: check for check in verify_checkpoint(place)}


def test_verify_finds_what_is_wrong(tmp_path):
    model = saved_bert(tmp_path)
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", *(f"w{i}" for i in range(V))])}
    data = {"model": {"type": "WordPiece", "vocab": vocabulary}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    checks = checks_of(tmp_path)
    assert checks["weights are stored"].is_good
    assert not checks["ids have rows"].is_good
    assert "'w28'" in checks["ids have rows"].detail
    assert checks["permutation test"].is_good
    assert checks["ties hold"].is_good
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[3:6] = 0
        model.bert.embeddings.word_embeddings.weight[7, 0] = np.nan
    model.save_pretrained(tmp_path)
    rows = checks_of(tmp_path)["rows are sound"]
    assert not rows.is_good
    assert "NaN" in rows.detail


@pytest.mark.parametrize(
    ("name", "is_good"),
    [("cls.predictions.transform.dense.weight", True), ("bert.embeddings.word_embeddings.weight", False)],
)
def test_verify_names_weights_that_are_not_stored(name, is_good, tmp_path):
    """transformers draws them; a model whose table is drawn is no model."""
    saved_bert(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({each: weights[each] for each in weights if each != name}, tmp_path / "model.safetensors")
    checks = checks_of(tmp_path)
    assert checks["weights are stored"].is_good is is_good
    assert checks["weights are stored"].detail.startswith(f"BertForMaskedLM; no weights for {name}")
    assert ("permutation test" in checks) is is_good


@pytest.mark.parametrize("is_masked", [True, False])
def test_padding_must_not_change_what_a_model_makes_of_a_sentence(is_masked, tmp_path, monkeypatch):
    saved_bert(tmp_path)
    tokens = ["[PAD]", "[UNK]", "a", "b", *(f"w{i}" for i in range(V - 4))]
    (tmp_path / "tokenizer.json").write_text(json.dumps(wordpiece_json(tokens, tmp_path)))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if not is_masked:
        forward = BertForMaskedLM.forward
        monkeypatch.setattr(
            BertForMaskedLM, "forward", lambda self, input_ids, attention_mask: forward(self, input_ids)
        )
    checks = checks_of(tmp_path)
    assert checks["pads a batch"].is_good is is_masked
    assert "under padding" in checks["pads a batch"].detail


def test_the_record_that_verify_reads_is_the_one_that_its_help_names():
    assert EXCHANGE_RECORD in nlgraft("vocab", "verify", "--help").output


def test_a_directory_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(DataError, match="not a checkpoint"):
        load_checkpoint(tmp_path)
