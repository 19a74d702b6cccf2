"""The plain Transformer: against torch's own layers, step by step, padding, tying."""

import pytest
import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from tests.tensors import assert_near

TINY = {"d_model": 16, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "ffn_dim": 24}


def make_model(**settings):
    torch.manual_seed(0)
    return Seq2Seq(TransformerConfig(**TINY, **settings), 30, 30).double().eval()


def make_batch(sources, targets):
    target = Tokens.from_lists(targets)
    return Batch([Tokens.from_lists(sources)], target, target.ids)


SOURCES = [[5, 6, 7, 8, 3], [9, 10, 3], [11, 12, 13, 3]]
TARGETS = [[2, 5, 6], [2, 7, 8, 9, 10], [2]]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")  # torch's, about its own layers
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_equals_torch_transformer(norm):
    """Reference: torch.nn.Transformer with our weights copied in."""
    model = make_model(norm=norm)
    reference = (
        torch.nn.Transformer(16, 4, 2, 2, 24, 0.0, norm_first=norm == "pre", batch_first=True).double().eval()
    )
    if norm == "post":
        reference.encoder.norm = reference.decoder.norm = None
    else:
        reference.encoder.norm, reference.decoder.norm = model.encoder_norm, model.decoder_norm

    def copy(torch_part, part):
        torch_part.in_proj_weight.data = torch.cat([part.query.weight, part.key_value.weight])
        torch_part.in_proj_bias.data = torch.cat([part.query.bias, part.key_value.bias])
        torch_part.out_proj = part.output

    def norm_of(residual):
        return residual.input_norm or residual.output_norm

    for torch_part, part in zip(reference.encoder.layers, model.encoder, strict=True):
        copy(torch_part.self_attn, part.attention)
        torch_part.linear1, torch_part.linear2 = part.ffn.inner, part.ffn.outer
        torch_part.norm1, torch_part.norm2 = norm_of(part.attention_residual), norm_of(part.ffn_residual)
    for torch_part, part in zip(reference.decoder.layers, model.decoder, strict=True):
        copy(torch_part.self_attn, part.attention)
        copy(torch_part.multihead_attn, part.cross_attention)
        torch_part.linear1, torch_part.linear2 = part.ffn.inner, part.ffn.outer
        torch_part.norm1, torch_part.norm2 = norm_of(part.attention_residual), norm_of(part.cross_residual)
        torch_part.norm3 = norm_of(part.ffn_residual)
    batch = make_batch(SOURCES, TARGETS)
    source, target = batch.sources[0], batch.target_input
    expected = reference(
        model.source_input(model.source_embedding(source)),
        model.target_input(model.target_embedding(target)),
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64),
        src_key_padding_mask=~source.valid,
        memory_key_padding_mask=~source.valid,
    )
    logits = model(batch)
    assert_near(logits[target.valid], expected[target.valid], 1e-12)


def test_padding_row_is_zero_and_gets_no_gradient():
    model = make_model(tying="none")
    batch = make_batch(SOURCES, TARGETS)
    model.logits(model(batch)).sum().backward()
    assert model.source_embedding.table.weight[0].abs().max() == 0
    assert model.source_embedding.table.weight.grad[0].abs().max() == 0
