"""Text is kept within learned positions: in training, when words are split, in sources and hypotheses."""

from __future__ import annotations

import numpy as np
import torch

from nlgraft.nn.batch import Tokens
from nlgraft.nn.config import GenerationConfig, TransformerConfig
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.text.batches import Ragged
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.embedding_transfer.cloze import ClozePerturbedData
from trainables.embedding_transfer.new_tokens import SimilarOptions
from trainables.embedding_transfer.perturbation import Rates


def test_no_split_outgrows_the_positions(tmp_path):
    """A line that would have no position left stays as it is; the others are split."""
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "motor"]
    (tmp_path / "vocab.txt").write_text("".join(f"{line}\n" for line in lines))
    vocabulary, word = load_vocabulary(tmp_path), 5
    text = Ragged.of([[word] * 8] * 50)
    rates = {"decoder": Rates(split=0.5, cut=0.5, cut_edge=0.5, min_split_chars=2, merge=0)}
    settings = {"batch_tokens": 100_000, "seed": 1, "mask_id": 4, "rate": 0.3}
    lengths = []
    for room in (None, 11):
        data = ClozePerturbedData(
            Encoded({"source 0": text, "target": text}),
            {"decoder": vocabulary},
            rates,
            SimilarOptions(10, "id"),
            max_tokens=room,
            **settings,
        )
        read = data.batch(np.arange(50), 0).perturbed.sources[0]
        lengths.append((read.valid.sum(1) - 1).numpy())
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
    found = beam_search(model, [Tokens.from_lists([[7, 3], [8, 9, 3]])], config=settings)
    assert max(len(hypotheses[0].ids) for hypotheses in found) == 5
