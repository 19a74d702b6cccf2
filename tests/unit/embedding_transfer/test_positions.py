"""Text is kept within learned positions: in training, when words are split, in sources and hypotheses."""

from __future__ import annotations

import numpy as np
import torch

from nlgraft.nn.batch import Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.text.batches import Ragged
from nlgraft.training.masked_text import Masker, MaskingIds
from nlgraft.training.train_config import MaskingConfig
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.embedding_transfer.config import SegmentationRates
from trainables.embedding_transfer.generator_data import ChangedLines, ChangedSide


def test_no_split_outgrows_the_positions(tmp_path):
    """A line that would have no position left stays as it is; the others are split."""
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "motor"]
    (tmp_path / "vocab.txt").write_text("".join(f"{line}\n" for line in lines))
    vocabulary, word = load_vocabulary(tmp_path), 5
    text = Ragged.of([[word] * 8] * 50)
    rates = SegmentationRates(split=0.5, cut=0.5, cut_edge=0.5, min_split_chars=2, merge=0)
    masking = MaskingConfig(unit="token", rate=0.1)
    masker = Masker(Encoded({"source 0": text}), MaskingIds.of(vocabulary), masking, 1)
    lengths = []
    for room in (None, 11):
        side = ChangedSide(vocabulary, rates, "encoder", 10)
        read = ChangedLines(masker, 100_000, 0.5, side, room).batch(np.arange(50), 0).changed.tokens
        lengths.append((read.valid.sum(1) - 2).numpy())
    unlimited, limited = lengths
    assert unlimited.max() > 11
    assert (limited[unlimited > 11] == 8).all()
    assert (limited[unlimited <= 11] == unlimited[unlimited <= 11]).all()
    assert 8 < limited.max() <= 11


def test_hypotheses_end_where_positions_do():
    config = TransformerConfig(
        preset="tiny", d_model=16, source_positions="learned", target_positions="learned", max_positions=6
    )
    torch.manual_seed(0)
    model = Seq2Seq(config, 12, 12).eval()
    with torch.no_grad():
        model.target_embedding.table.weight[3].zero_()  # the end is never likely
    settings = GenerationConfig(beam=2, max_length_ratio=0.0, max_length_offset=50)
    beams = beam_search(model, [Tokens.from_lists([[7, 3], [8, 9, 3]])], config=settings)
    assert max(len(hypotheses[0].ids) for hypotheses in beams) == 5
