"""Masked language models on our own encoder: their files, and their use as encoder and decoder."""

import pytest
import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.masked_lm_models import MaskedBatch
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.training.masked_lm_training import bert2bert, fresh_encoder, read_masked_lm, write_masked_lm
from tests.small_studies import TINY
from tests.tiny_masked_lms import KINDS, masked_lm


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_model_is_read_as_it_was(kind, tmp_path):
    model = masked_lm(12, kind)
    write_masked_lm(model, tmp_path)
    again = read_masked_lm(tmp_path).eval()
    assert type(again) is type(model)
    batch = MaskedBatch.of([[2, 5, 4, 3], [2, 6, 3]], [[-100, -100, 7, -100], [-100, 6, -100]], 0)
    assert all(torch.equal(*pair) for pair in zip(model(batch), again(batch), strict=True))
    assert batch.targets.tolist() == [7, 6]
    assert batch.num_targets.tolist() == [1, 1]


def test_a_checkpoint_without_a_head_says_so_when_it_is_read(tmp_path):
    write_masked_lm(fresh_encoder(TransformerConfig(**TINY), 12, can_predict=False), tmp_path)
    assert not read_masked_lm(tmp_path).can_predict


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_decoder_begins_as_the_encoder(norm):
    """Without cross-attention and future, decoder states are those of the encoder on a line of one token."""
    config = TransformerConfig(**TINY, norm=norm)
    masked = fresh_encoder(config, 12, seed=3).eval()
    both = bert2bert(masked, config, Seq2Seq(config, 12, 12)).eval()
    assert torch.equal(both.source_embedding.table.weight, both.target_embedding.table.weight)
    assert both.source_embedding.table.weight.data_ptr() != both.target_embedding.table.weight.data_ptr()
    assert both.output_projection.weight.data_ptr() == both.target_embedding.table.weight.data_ptr()
    line = Tokens.from_lists([[5]])
    with torch.no_grad():
        for layer in both.decoder:
            layer.cross_attention.output.weight.zero_()
            layer.cross_attention.output.bias.zero_()
        states = both(Batch([line], line, line.ids))
        expected = masked(MaskedBatch.of([[5]], [[-100]], 0))[0]
    assert torch.allclose(states, expected, atol=1e-5)
