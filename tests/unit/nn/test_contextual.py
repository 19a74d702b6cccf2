"""Checkpoints of transformers behind our interface, and the simple poolings."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.context_config import HuggingFaceEncoderConfig, PoolingConfig, UniLMConfig
from nlgraft.nn.contextual import load_encoder
from nlgraft.nn.hugging_face import load_base_model
from nlgraft.nn.language_models import UniLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.pooling import EncoderShape, LayerStates, build_pooling
from tests.tiny_models import HIDDEN, VOCAB, family_config, hugging_face

KINDS = ["bert", "electra", "distilbert", "gpt2", "xlm_roberta", "mbart", "marian", "pegasus"]
ROWS = [[9, 10, 11, 12], [13, 14]]
LM = UniLMConfig(vocab_size=VOCAB, d_model=8, num_layers=1, num_heads=2, ffn_dim=8)
SIZES = {"d_model": 8, "num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "ffn_dim": 8}


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_transformers_own(kind, tmp_path):
    """From a directory, in fp32, padded: equal to each sentence alone in transformers."""
    reference = hugging_face(kind)
    reference.half().save_pretrained(tmp_path)
    config = HuggingFaceEncoderConfig(checkpoint=str(tmp_path))
    loaded = load_encoder(config)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    reference = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float32)
    encoder = reference.get_encoder() if kind in ("mbart", "marian", "pegasus") else reference
    states = loaded(Tokens.from_lists(ROWS))
    assert loaded.shape == EncoderShape(4, HIDDEN, HIDDEN)
    assert loaded.vocab_size == VOCAB
    for index, row in enumerate(ROWS):
        output = encoder(input_ids=torch.tensor([row]), output_hidden_states=True)
        for layer, expected in zip(states.layers, output.hidden_states, strict=True):
            torch.testing.assert_close(layer[index, : len(row)], expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            states.output[index, : len(row)], output.last_hidden_state[0], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"kind": "index", "index": 1}, [1.0, 1.0]),
        ({"kind": "index", "index": -1}, [3.0, 3.0]),
        ({}, [2.0, 2.0]),
        ({"kind": "mean"}, [2.0, 2.0]),
        ({"kind": "mean", "num_last": 2}, [2.5, 2.5]),
        ({"kind": "output"}, [7.0, 7.0, 7.0]),
    ],
)
def test_pooling_by_hand(config, expected):
    """States 0..3 of width 2 and an output of width 3: the embeddings are no layer of the mean."""
    pooling = build_pooling(PoolingConfig(**config), EncoderShape(4, 2, 3))
    layers = [torch.full((1, 1, 2), float(value)) for value in range(4)]
    states = LayerStates(layers, torch.full((1, 1, 3), 7.0))
    valid = torch.ones(1, 1, dtype=torch.bool)
    assert pooling(pooling.select(states), valid).flatten().tolist() == expected
    assert pooling.output_dim == len(expected)


def test_a_centred_mixture_by_hand():
    """States (5, 3) and (1, 4) less their means (5, 1) and (1, 9) are (0, 2) and (0, -5): -1, 1 and 1, -1."""
    layers = torch.tensor([[5.0, 3.0], [1.0, 4.0]])[:, None, None]
    valid = torch.ones(1, 1, dtype=torch.bool)
    plain, centred = (
        build_pooling(PoolingConfig(kind="scalar_mix", is_centred=is_centred), EncoderShape(2, 2, 2))
        for is_centred in (False, True)
    )
    assert plain(layers, valid).flatten().tolist() == pytest.approx([0.0, 0.0], abs=1e-4)
    assert centred(layers, valid).isnan().all(), "means that were never set cannot be overlooked"
    centred.means.copy_(torch.tensor([[5.0, 1.0], [1.0, 9.0]]))
    centred.mix.data = torch.tensor([0.0, -torch.inf])
    assert centred(layers, valid).flatten().tolist() == pytest.approx([-1.0, 1.0], abs=1e-4)
    centred.mix.data = torch.tensor([-torch.inf, 0.0])
    assert centred(layers, valid).flatten().tolist() == pytest.approx([1.0, -1.0], abs=1e-4)
    assert "means" not in plain.state_dict()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"index": 4}, r"pooling.index 4 of an encoder with 4 hidden states"),
        ({"kind": "mean", "num_last": 4}, r"pooling.num_last 4 of an encoder with 3 layers"),
        ({"kind": "groups", "group_size": 2}, r"pooling.group_size 2 of an encoder with 3 layers"),
    ],
)
def test_layers_that_there_are_not_are_refused(config, message):
    with pytest.raises(ContractError, match=message):
        build_pooling(PoolingConfig(**config), EncoderShape(4, 2, 2))


def test_encoders_and_vocabularies_must_fit():
    config = family_config("src_elmo", LM, **SIZES)
    with pytest.raises(
        ContractError, match="source_context 'lm' has 40 tokens but the source vocabulary has 30"
    ):
        Seq2Seq(config, 30, 30)
    with pytest.raises(ContractError, match=r"encoders for \['other'\] but contexts has: lm"):
        Seq2Seq(config, VOCAB, 30, {"other": UniLM(LM)})
    with pytest.raises(ContractError, match="tying 'all' with 30 source and 31 target tokens"):
        Seq2Seq(TransformerConfig(**SIZES, tying="all"), 30, 31)


def test_a_missing_context_is_named():
    model = Seq2Seq(family_config("prlm", LM, **SIZES), 30, 30)
    tokens = Tokens.from_lists([[9, 3]])
    with pytest.raises(ContractError, match=r"lacks contexts \['prlm'\], it has: none"):
        model(Batch([tokens], tokens, tokens.ids))


def test_a_checkpoint_that_lacks_weights_is_no_context(tmp_path):
    """transformers draws what the files lack, without a word."""
    hugging_face("bert").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = HuggingFaceEncoderConfig(checkpoint=str(tmp_path))
    assert load_base_model(config) is not None
    del kept["embeddings.word_embeddings.weight"]
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"lack 1 of the model .*embeddings\.word_embeddings"):
        load_base_model(config)
