"""Special tokens that masking needs, text without words, text infilling."""

import numpy as np
import pytest
import tokenizers

from nlgraft.basics.errors import DataError
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.training.loop import train
from nlgraft.training.losses import TokenObjective
from nlgraft.training.masked_lm_training import predict_masked
from nlgraft.training.masked_text import MaskedData, MaskedSpans, Masker, MaskingIds, mask_spans
from nlgraft.training.seeds import generator_for
from nlgraft.training.step import Training
from nlgraft.training.train_config import MaskingConfig, TrainConfig
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from tests.tiny_masked_lms import LINES, SPECIALS, masked_lm, pieces
from tests.unit.training.toy import Recorder, make_context


def test_special_tokens_are_found_by_role(tmp_path):
    ids = pieces(tmp_path).ids
    assert [ids.pad, ids.unk, ids.begin, ids.end, ids.mask] == [*range(len(SPECIALS))]
    assert ids.normal.tolist()[:2] == [5, 6]


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]")
    )
    plain.add_special_tokens(["[PAD]", "[UNK]"])
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="no mask token"):
        MaskingIds.of(load_vocabulary(tmp_path))


@pytest.mark.parametrize("unit", ["word", "token"])
def test_blank_lines_between_paragraphs_are_no_batches_of_their_own(unit, tmp_path, monkeypatch):
    """An epoch ends after the batches that there are, killed in between or not."""
    monkeypatch.setattr("nlgraft.training.loop.CHECKPOINT_EVERY_STEPS", 2)
    monkeypatch.setattr("nlgraft.training.loop.REPORT_EVERY_STEPS", 1)
    words = pieces(tmp_path)
    lines = [line for text in LINES for line in (text, "", " ")]
    batches = LengthBatches(np.array([len(line) for line in lines]), 2, seed=1, is_by_count=True)

    def trained(name, reporter=None):
        masker = Masker(words.encode(lines), words.ids, MaskingConfig(unit=unit), seed=1)
        model = masked_lm(len(words.vocabulary))
        config = TrainConfig(max_epochs=2, average_last=1, batch_sentences=2)
        training = Training(model, TokenObjective(predict_masked), MaskedData(masker, batches), config)
        outcome = train(training, make_context(tmp_path / name, reporter))
        return outcome.step, outcome.num_tokens, outcome.num_examples, model.state_dict()

    whole = trained("whole")
    assert len(batches.epoch(0)) == 6
    assert whole[0] == 4
    with pytest.raises(KeyboardInterrupt):
        trained("killed", Recorder(fail_at=3))
    resumed = trained("killed")
    assert resumed[:3] == whole[:3]
    assert all(tensor.equal(resumed[3][name]) for name, tensor in whole[3].items())


MASK = 4


def test_masked_tokens_are_the_share_that_was_asked_for():
    ids = list(range(10, 50))
    for seed in range(50):
        read = mask_spans(ids, MASK, rate=0.35, mean_tokens=3.5, generator=np.random.default_rng(seed))
        kept = [i for i in read if i != MASK]
        assert len(kept) == 40 - 14
        assert kept == sorted(kept), "what stays keeps its order"
        assert 1 <= read.count(MASK) <= 40


def test_one_long_span_is_one_mask():
    """A mean span far above the share: the one span is cut to 14 of 40 tokens, 27 remain with the mask."""
    read = mask_spans(range(10, 50), MASK, rate=0.35, mean_tokens=1e4, generator=np.random.default_rng(0))
    assert read.count(MASK) == 1
    assert len(read) == 27
    before = read.index(MASK)
    assert read[:before] == list(range(10, 10 + before))
    assert read[before + 1 :] == list(range(10 + before + 14, 50))


def test_nothing_is_masked_in_empty_text_and_all_of_it_at_rate_one():
    generator = np.random.default_rng(0)
    assert mask_spans([], MASK, rate=0.35, mean_tokens=3.5, generator=generator) == []
    assert mask_spans([7], MASK, rate=0.99, mean_tokens=1e4, generator=generator) == [MASK]


def test_masked_spans_depend_on_seed_epoch_and_line_only():
    lines = Ragged.of([list(range(10, 30)), list(range(10, 30))])
    stream = MaskedSpans(lines, MASK, 0.35, 3.5)
    first, again, other = stream.epoch(0, 5), stream.epoch(0, 5), stream.epoch(1, 5)
    assert np.array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)
    assert first[0].tolist() != first[1].tolist()
    generator = generator_for(5, "masked spans", 0, 1)
    alone = mask_spans(range(10, 30), MASK, rate=0.35, mean_tokens=3.5, generator=generator)
    assert first[1].tolist() == alone
