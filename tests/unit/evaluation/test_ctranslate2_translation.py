"""CTranslate2 says what our own search says of the same model."""

import numpy as np
import pytest
import torch

from nlgraft.basics.errors import ContractError
from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.translation import translate
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.text.batches import Ragged

pytest.importorskip("ctranslate2", reason="the extra int8")
from nlgraft.evaluation.ctranslate2_translation import translate_by_ctranslate2

MODELS = {
    "post-norm": {},
    "pre-norm, untied, gelu": {"norm": "pre", "tying": "none", "activation": "gelu"},
    "all tied, learned positions": {
        "tying": "all",
        "source_positions": "learned",
        "target_positions": "learned",
        "max_positions": 40,
        "has_embedding_norm": True,
    },
    "interleaved, silu, no scale": {
        "position_layout": "interleaved",
        "activation": "silu",
        "has_source_scale": False,
        "has_target_scale": False,
        "norm_eps": 1e-3,
        "end_bias": 4.0,
    },
    "no target positions": {"target_positions": "none"},
}
SEARCHES = [
    {"beam": 1},
    {"beam": 5, "num_return": 3},
    {"beam": 4, "length_penalty": "average", "alpha": 1.0},
    {"beam": 3, "length_penalty": "none"},
    {"beam": 5, "max_length_ratio": 0.5, "max_length_offset": 1},
]


def make_model(end_bias=1.5, pad_bias=-5.0, **settings):
    """A model whose sentences end after some tokens."""
    torch.manual_seed(3)
    sizes = {"d_model": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "ffn_dim": 48}
    config = TransformerConfig(**sizes, has_output_bias=True, **settings)
    model = Seq2Seq(config, 40, 40).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    model.output_projection.bias[3] = end_bias
    model.output_projection.bias[0] = pad_bias
    return model


def inputs(count=60):
    random = np.random.default_rng(0)
    return Inputs([Ragged.of([[*random.integers(4, 30, random.integers(1, 9)), 3] for _ in range(count)])])


def limits(config):
    lengths = inputs().lengths
    return (config.max_length_ratio * lengths).astype(int) + config.max_length_offset


@pytest.mark.parametrize("settings", list(MODELS.values()), ids=list(MODELS))
def test_hypotheses_are_ours(settings):
    model, num_ended = make_model(**settings), 0
    for search in SEARCHES:
        config = GenerationConfig(**{"max_length_offset": 25, "batch_sentences": 20} | search)
        ours = translate(model, inputs(), config)
        theirs = translate_by_ctranslate2(model, inputs(), config, "fp32")
        assert theirs.best == ours.best
        for found, expected in zip(theirs.hypotheses, ours.hypotheses, strict=True):
            assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)
        num_ended += sum(len(ids) < limit for ids, limit in zip(ours.best, limits(config), strict=True))
    # Sentences at their limits are decoded by our own search.
    assert num_ended > 30


def test_padding_is_never_said():
    model, config = make_model(pad_bias=3.0), GenerationConfig(max_length_offset=5)
    found = translate_by_ctranslate2(model, inputs(), config, "fp32")
    assert found.best == translate(model, inputs(), config).best


def test_a_model_without_bias():
    """At a length that no hypothesis chooses, greedy search says the same."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 4, "ffn_dim": 48}
    model = Seq2Seq(TransformerConfig(**sizes), 40, 40).eval()
    config = GenerationConfig(beam=1, max_length_ratio=0.0, max_length_offset=6)
    found = translate_by_ctranslate2(model, inputs(), config, "fp32")
    assert found.best == translate(model, inputs(), config).best


def test_int8_says_nearly_the_same():
    model, config = make_model(), GenerationConfig(max_length_offset=25)
    ours = translate(model, inputs(), config).best
    found = translate_by_ctranslate2(model, inputs(), config, "int8").best
    assert 0.8 < np.mean([a == b for a, b in zip(ours, found, strict=True)]) < 1


def test_other_models_and_searches_are_refused_by_name():
    two = make_model(num_sources=2, segments="halves")
    with pytest.raises(ContractError, match=r"no model with its own num_sources, segments;"):
        translate_by_ctranslate2(two, inputs(), GenerationConfig(), "int8")
    config = GenerationConfig(stopping="exact", min_length=3)
    with pytest.raises(ContractError, match=r"decode\.stopping exact, decode\.min_length 3;"):
        translate_by_ctranslate2(make_model(), inputs(), config, "fp32")
