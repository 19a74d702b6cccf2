"""CTranslate2 says of an exported model what our own search says of it."""

import numpy as np
import pytest
import torch

from nlgraft.basics.errors import ContractError
from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.translation import translate
from nlgraft.nn.conversion import ctranslate2_model
from nlgraft.nn.conversion.ctranslate2_model import write_ctranslate2
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.text.batches import Ragged

MODELS = {
    "post-norm": {},
    "pre-norm, untied, gelu": {"norm": "pre", "tying": "none", "activation": "gelu"},
    "all tied, learned positions": {
        "tying": "all",
        "source_positions": "learned",
        "target_positions": "learned",
        "max_positions": 40,
        "has_embedding_norm": True,
        "end_bias": 4.0,
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
LIMIT = 25
GREEDY = GenerationConfig(beam=1, max_length_ratio=0.0, max_length_offset=LIMIT)
PIECES = [str(token) for token in range(40)]


def make_model(end_bias=1.5, **settings):
    """A model whose sentences end after some tokens."""
    torch.manual_seed(3)
    sizes = {"d_model": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "ffn_dim": 48}
    model = Seq2Seq(TransformerConfig(**sizes, has_output_bias=True, **settings), 40, 40)
    model = model.eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    model.output_projection.bias[3] = end_bias
    model.output_projection.bias[0] = -5.0
    return model


@pytest.mark.parametrize("settings", list(MODELS.values()), ids=list(MODELS))
def test_greedy_translations_are_ours(settings, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra ctranslate2")
    model = make_model(**settings)
    random = np.random.default_rng(0)
    sources = [[*random.integers(4, 30, random.integers(1, 9)).tolist(), 3] for _ in range(60)]
    expected = translate(model, Inputs([Ragged.of(sources)]), GREEDY).best
    write_ctranslate2(model, GREEDY, tmp_path, 40, (PIECES, PIECES))
    results = ctranslate2.Translator(str(tmp_path)).translate_batch(
        [[str(token) for token in source] for source in sources],
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=LIMIT,
    )
    translations = [[int(token) for token in result.hypotheses[0]] for result in results]
    # Where CTranslate2 reaches the limit, ours ends earlier, with a less likely last token.
    ended = [(best, ids) for best, ids in zip(expected, translations, strict=True) if len(ids) < LIMIT]
    assert len(ended) > 5
    for best, ids in ended:
        assert ids == best


def test_other_models_and_a_missing_package_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(ctranslate2_model, "find_spec", lambda name: None)
    two = make_model(num_sources=2, segments="halves")
    for model, part in ((two, "num_sources, segments"), (make_model(), "pip install 'nlgraft")):
        with pytest.raises(ContractError, match=part):
            write_ctranslate2(model, GREEDY, tmp_path, 40, (PIECES, PIECES))
