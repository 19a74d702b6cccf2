"""Text that is segmented anew in every epoch of a training."""

import numpy as np

from nlgraft.stages.run.training_task import SampledLines
from nlgraft.text.tokenizer_config import WordSampling, WordTokenizerConfig
from nlgraft.text.tokenizers import learn_tokenizer
from nlgraft.training.masked_lm_training import LabelledData
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.vocab.tokenizers.loading import load_vocabulary

LINES = ["lower lowest newer newest wider widest"] * 12


def test_epochs_differ_and_can_be_repeated(tmp_path):
    learn_tokenizer(LINES, WordTokenizerConfig(kind="bpe", vocab_size=40), tmp_path)
    ids = MaskingIds.of(load_vocabulary(tmp_path))

    def data():
        return SampledLines(
            LINES,
            tmp_path,
            WordSampling(dropout=0.5, max_tokens=60),
            7,
            lambda text: LabelledData(text.stream(TEXT), np.arange(12), ids, batch_tokens=200),
        )

    dataset, other = data(), data()
    rows = np.array([3, 4])
    other.batch(rows, 1)  # another order of calls
    first, second = (dataset.batch(rows, epoch).tokens.ids.tolist() for epoch in (0, 1))
    assert first != second
    assert [other.batch(rows, epoch).tokens.ids.tolist() for epoch in (0, 1)] == [first, second]
    assert sorted(row for batch in dataset.epoch(1) for row in batch) == [*range(12)]
