"""The control arm whose text has the new tokenizer's ids, while row i of the table stays that of id i."""

import json

import pytest
import tokenizers
import torch

from nlgraft.nn.masked_lm_models import NOT_PREDICTED, MaskedBatch
from nlgraft.text.corpora import read_corpus
from nlgraft.text.tokenizers import TOKENIZER_FILE
from nlgraft.training.masked_lm_training import read_masked_lm
from nlgraft.training.masked_text import TEXT
from nlgraft.training.views import Encoded
from tests.contract.toys.vocabulary_transfer import ARMS
from tests.tensors import differing
from tests.unit.stages.runs import finish
from trainables.vocabulary_transfer import Config, stage_graph

SIDES = ("upstream", "downstream")


def graph(arm):
    return stage_graph(Config.model_validate_json(json.dumps(ARMS[arm])), seed=1, splits=("dev",))


@pytest.fixture(scope="module")
def at(store):
    return finish(store, graph("old_rows_new_ids"))[1]


def bare_ids(directory, lines):
    """What the tokenizers library makes of lines, without a begin and an end."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    return [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]


def test_the_classifier_reads_the_ids_of_the_new_tokenizer(at):
    trained = graph("old_rows_new_ids").find("classifier")
    assert trained.inputs["encoded"] == graph("vipi").find("downstream_encoded")
    lines = read_corpus(at("downstream_corpus") / "dev").sources[0]
    read = Encoded.read(at("downstream_encoded") / "dev.safetensors").stream(TEXT)
    read_ids = [read[index].tolist() for index in range(len(lines))]
    new, old = (bare_ids(at(f"{side}_tokenizer"), lines) for side in ("downstream", "upstream"))
    assert read_ids == new
    assert not any(there == here for there, here in zip(read_ids, old, strict=True))


def test_each_id_has_the_row_that_it_had(at):
    """150 old rows, 160 new ones: those beyond the old table are drawn, the body is the pretrained one."""
    before, after = read_masked_lm(at("upstream")), read_masked_lm(at("transfer"))
    old, new = before.input_table.detach(), after.input_table.detach()
    assert len(old) < len(new)
    assert torch.equal(new[: len(old)], old)
    assert not (new[len(old) :, None] == old).all(2).any()
    assert differing(before, after) <= before.vocabulary_tensors
    tokens = [tokenizers.Tokenizer.from_file(str(at(f"{side}_tokenizer") / TOKENIZER_FILE)) for side in SIDES]
    names = [[tokenizer.id_to_token(i) for i in range(5, len(old))] for tokenizer in tokens]
    assert sum(old_name == new_name for old_name, new_name in zip(*names, strict=True)) < len(old) / 10


def test_a_line_is_to_the_model_what_its_new_ids_are_to_the_pretrained_one(at):
    """The arm as a whole, up to the classifier that is trained on it."""
    trained = graph("old_rows_new_ids").find("classifier")
    assert trained.inputs["body"].name == "transfer"
    before, after = (read_masked_lm(at(name)).eval() for name in ("upstream", "transfer"))
    read = Encoded.read(at("downstream_encoded") / "dev.safetensors").stream(TEXT)
    for index in range(len(read)):
        old_ids = [i for i in read[index].tolist() if i < len(before.input_table)]
        assert len(set(old_ids)) > 3
        line = MaskedBatch.of([old_ids], [[NOT_PREDICTED] * len(old_ids)], 0)
        with torch.no_grad():
            assert torch.equal(after(line)[0], before(line)[0])
