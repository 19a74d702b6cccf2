"""A BERT of transformers read as our encoder: states, predictions, settings, what is refused."""

import pytest
import torch
import transformers

from nlgraft.basics.errors import ContractError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.conversion.encoders import encoder_from_hugging_face, read_encoder_config
from nlgraft.nn.model import Seq2Seq
from tests.tensors import assert_near, differing
from tests.tiny_checkpoints import edit
from tests.tiny_models import tiny_bert

LINES = [[2, 5, 6, 3], [2, 7, 8, 9, 10, 11, 3], [2, 12, 3]]


def states_of(model, tokens):
    with torch.no_grad():
        return model.encode([tokens]).bank[0].states


def their_states(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens.ids, attention_mask=tokens.valid.long()).last_hidden_state


@pytest.mark.parametrize(
    "settings",
    [{}, {"hidden_act": "relu", "layer_norm_eps": 0.1}, {"num_attention_heads": 4, "num_hidden_layers": 3}],
)
def test_states_and_predictions_are_theirs(settings):
    """Padding included: lines of three lengths in one batch."""
    bert = tiny_bert(**settings)
    read = encoder_from_hugging_face(bert)
    tokens = Tokens.from_lists(LINES)
    states = states_of(read.model, tokens)
    expected = their_states(bert.bert, tokens)
    assert_near(states[tokens.valid], expected[tokens.valid], 1e-5)
    with torch.no_grad():
        logits = read.model.logits(read.head(states))
        their_logits = bert(input_ids=tokens.ids, attention_mask=tokens.valid.long()).logits
    assert_near(logits[tokens.valid], their_logits[tokens.valid], 1e-5)


def test_settings_are_read():
    config = encoder_from_hugging_face(tiny_bert(hidden_dropout_prob=0.2)).model.config
    assert (config.dropout, config.attention_dropout, config.max_positions) == (0.2, 0.1, 64)
    both = read_encoder_config(tiny_bert().config.to_dict(), "here")
    assert (both.num_encoder_layers, both.num_decoder_layers, both.tying) == (2, 2, "decoder")


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_files_with_and_without_head(kind, tmp_path):
    """A head that predicts hidden tokens is read, that of next sentences is named as left out."""
    source = tiny_bert()
    saved = getattr(transformers, kind)(source.config)
    (saved.bert if hasattr(saved, "bert") else saved).load_state_dict(source.bert.state_dict(), strict=False)
    saved.save_pretrained(tmp_path)
    state = torch.get_rng_state()
    read, again = (encoder_from_hugging_face(tmp_path) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert (read.head is None) == (kind == "BertModel")
    assert read.model.config.has_output_bias == (kind != "BertModel")
    message = " ".join(read.notes)
    assert ("no prediction head" in message) == (kind == "BertModel")
    assert ("cls.seq_relationship" in message) == (kind == "BertForPreTraining")
    tokens = Tokens.from_lists(LINES)
    expected = their_states(source.bert, tokens)[tokens.valid]
    assert_near(states_of(read.model, tokens)[tokens.valid], expected, 1e-5)
    assert not differing(read.model, again.model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "roberta"}, "model type 'roberta' cannot be converted into an encoder"),
        (
            {"hidden_act": "gelu_new", "is_decoder": True},
            "'gelu_new': Did you mean.*; is_decoder is set",
        ),
        ({"position_embedding_type": "relative_key"}, "only 'absolute'"),
    ],
)
def test_what_has_no_counterpart_is_refused(settings, message):
    with pytest.raises(ContractError, match=message):
        read_encoder_config(tiny_bert().config.to_dict() | settings, "here")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ContractError, match="no readable config"):
        encoder_from_hugging_face(tmp_path)
    bert = tiny_bert()
    bert.save_pretrained(tmp_path)
    edit(tmp_path / "config.json", num_hidden_layers=3)
    with pytest.raises(ContractError, match=r"the file lacks bert\.encoder\.layer\.2"):
        encoder_from_hugging_face(tmp_path)
    with torch.no_grad():
        bert.cls.predictions.decoder.weight = torch.nn.Parameter(torch.zeros(40, 16))
    with pytest.raises(ContractError, match="an untied output table"):
        encoder_from_hugging_face(bert)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((119_547, 119_547), 382_889_472), ((119_547, 32_000), 315_653_376), ((32_000, 32_000), 248_417_280)],
)
def test_parameters_of_table_3(sizes, expected):
    """M-BERT on both sides has the paper's 382M; with 32,000 tokens on the decoder's side, and on both."""
    config = read_encoder_config(transformers.BertConfig(vocab_size=119_547).to_dict(), "M-BERT")
    with torch.device("meta"):
        model = Seq2Seq(config, *sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
