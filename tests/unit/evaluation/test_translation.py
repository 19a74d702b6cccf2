"""Decoding in sorted batches, scoring what comes out, and what it costs."""

import re

import numpy as np
import pytest
import torch

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.inputs import Inputs, pack
from nlgraft.evaluation.translation import dev_scores, speed_signature, translate
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.text.batches import Ragged

SOURCES = Ragged.of([[5, 3], [6, 7, 8, 9, 3], [4, 4, 3], [10, 3], [9, 8, 7, 3], [3], [5, 6, 7, 3]])
CONFIG = GenerationConfig(beam=2, max_length_offset=4, batch_sentences=3)


class Letters:
    """Stands for a tokenizer: id n is the n-th letter."""

    def decode(self, lines):
        return [" ".join(chr(ord("a") + token) for token in ids) for ids in lines]

    def normalised(self, lines):
        return list(lines)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return Seq2Seq(TransformerConfig(preset="tiny", d_model=16, num_heads=2, ffn_dim=16), 12, 12).eval()


@pytest.mark.parametrize("beam", [1, 2])
def test_order_is_restored_and_batches_do_not_matter(model, beam):
    """Every sentence alone gives what it gives among the others."""
    config = CONFIG.model_copy(update={"beam": beam})
    together = translate(model, Inputs([SOURCES]), config)
    assert len(together.hypotheses) == len(SOURCES)
    for row in range(len(SOURCES)):
        alone = beam_search(model, [pack(SOURCES, np.array([row]))], config=config)[0]
        assert together.best[row] == alone[0].ids
    assert together.seconds > 0
    assert translate(model, Inputs([Ragged.of([])]), config).hypotheses == []


def test_dev_scores_by_hand(model):
    """References that are the model's own output: BLEU 100."""
    config = CONFIG.model_copy(update={"min_length": 5, "max_length_offset": 6})
    references = Letters().decode(translate(model, Inputs([SOURCES]), config).best)
    evaluate = dev_scores(Inputs([SOURCES]), references, Letters(), config)
    assert evaluate(model) == {"bleu": pytest.approx(100)}
    with pytest.raises(DataError, match="7 examples to translate but 1 references"):
        dev_scores(Inputs([SOURCES]), ["a"], Letters(), CONFIG)


def test_speed_is_labelled_with_beam_batch_and_device():
    """Invariant F35."""
    assert speed_signature(2, 3, "cuda:0") == "beam:2|batch:3|device:cuda"
    assert re.fullmatch(r"beam:2\|batch:3\|device:cpu\|threads:\d+", speed_signature(2, 3, "cpu"))


def test_a_source_that_nobody_has_still_packs_to_one_column():
    tokens = pack(Ragged.of([[], []]), np.array([0, 1]))
    assert tokens.ids.shape == (2, 1)
    assert not tokens.valid.any()
