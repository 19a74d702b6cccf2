"""Precomputed states give what a live encoder gives."""

import pytest
import torch

from nlgraft.basics.errors import ContractError, StoreError
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.context_config import BiLMConfig, ContextConfig
from nlgraft.nn.contextual import Context
from nlgraft.nn.frozen_states import FrozenStates, state_means, write_frozen_states
from nlgraft.nn.language_models import BiLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.training.models import read_model, write_model
from tests.tensors import assert_near
from tests.tiny_models import family_config

LM = BiLMConfig(vocab_size=20, d_model=8, num_layers=2, num_heads=2, ffn_dim=12)
SIZES = {"d_model": 8, "num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "ffn_dim": 12}
SENTENCES = [[9, 10, 3], [11, 3], [], [12, 13, 14, 15, 16, 3]]


def make_model(family, **settings):
    torch.manual_seed(0)
    config = family_config(family, encoder=LM, **SIZES, **settings)
    return Seq2Seq(config, 20, 20).eval()


def test_long_inputs_keep_head_and_tail(tmp_path):
    context = {"encoder": LM, "max_tokens": 4}
    model = make_model("prlm", contexts={"prlm": context})
    path = tmp_path / "states.safetensors"
    write_frozen_states(path, model.contexts["prlm"], SENTENCES)
    tokens = FrozenStates(path).tokens([3])
    assert tokens.layers.shape == (1, 1, 4, 16)
    cut = torch.tensor([[12, 13, 16, 3]])
    live = model.contexts["prlm"](type(tokens)(cut, torch.ones_like(cut, dtype=torch.bool)))
    stored = model.contexts["prlm"](tokens)
    assert_near(stored.states, live.states, 1e-6)


def test_a_corpus_of_empty_sentences(tmp_path):
    write_frozen_states(tmp_path / "states", make_model("prlm").contexts["prlm"], [[], []])
    assert FrozenStates(tmp_path / "states").tokens([0, 1]).valid.shape == (2, 0)


@pytest.mark.parametrize("settings", [{"is_frozen": False}, {"has_frozen_dropout": True}])
def test_only_frozen_states_can_be_stored(tmp_path, settings):
    with pytest.raises(ContractError, match="only a frozen encoder"):
        write_frozen_states(
            tmp_path / "x", Context(ContextConfig(encoder=LM, **settings), BiLM(LM)), SENTENCES
        )


def test_centred_states_have_no_mean(tmp_path):
    """Every layer's mean over all real tokens, the end tokens included and the prepended one not, is zero."""
    embedding = make_model("src_elmo").source_embedding
    means = state_means(embedding, SENTENCES, batch_tokens=8)
    write_frozen_states(tmp_path / "states", embedding, SENTENCES)
    stored = FrozenStates(tmp_path / "states").states
    assert stored.shape == (11, *means.shape)
    assert abs(stored.mean(0)).max() > 0.1
    assert abs(stored - means.numpy()).mean(0).max() > 0.1
    assert abs((stored - means.numpy()).mean(0)).max() < 1e-6
    assert_near(means, state_means(embedding, SENTENCES, batch_tokens=100), 1e-6)
    with pytest.raises(ContractError, match="a text without tokens"):
        state_means(embedding, [[], []])


def test_a_centred_model_is_the_same_stored_live_and_read_again(tmp_path):
    pooling = {"kind": "scalar_mix", "is_centred": True}
    context = {"encoder": LM, "pooling": pooling, "prepend_id": 3}
    plain, model = make_model("src_elmo"), make_model("src_elmo", contexts={"lm": context})
    model.source_embedding.context.centre(state_means(plain.source_embedding, SENTENCES))
    write_frozen_states(tmp_path / "states", model.source_embedding, SENTENCES)
    live, stored = Tokens.from_lists(SENTENCES[:2]), FrozenStates(tmp_path / "states").tokens([0, 1])

    def output(model, source):
        target = Tokens.from_lists([[3, 9, 8], [3, 5, 7]])
        with torch.no_grad():
            return model(Batch([source], target, target.ids))

    assert not torch.allclose(output(model, live), output(plain, live))
    assert_near(output(model, stored), output(model, live), 1e-6)
    write_model(model, tmp_path)
    assert torch.equal(output(read_model(tmp_path).eval(), live), output(model, live))


def test_a_broken_file_is_named(tmp_path):
    path = tmp_path / "broken"
    path.write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"broken holds no frozen states"):
        FrozenStates(path)
