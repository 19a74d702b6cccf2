"""Training text that is segmented anew in every epoch, with its words kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nlgraft.text.tokenizer_config import WordSampling
from nlgraft.text.word_tokenizers import TOKENIZER_FILE, WordSampler
from nlgraft.training.masked_text import TEXT, WORD_SIZES, WORDS
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import TrainData
from nlgraft.training.views import Encoded, IntArray


class SampledLines:
    """Training data whose lines are segmented anew in every epoch."""

    def __init__(
        self,
        lines: Sequence[str],
        tokenizer: Path,
        sampling: WordSampling,
        seed: int,
        data: Callable[[Encoded], TrainData],
    ) -> None:
        """Set up the data.

        Args:
            lines: The text.
            tokenizer: Directory of its BPE tokenizer.
            sampling: How it is segmented.
            seed: Seed of the segmentations.
            data: Makes the data of an epoch from its encoded lines.
        """
        self._lines = lines
        self._sampler = WordSampler(tokenizer / TOKENIZER_FILE, sampling.dropout)
        self._max_tokens = sampling.max_tokens
        self._seed = seed
        self._data = data
        # Batches of one epoch are asked for in turn, so one segmentation is kept.
        self._made: tuple[int, TrainData] | None = None

    def _of(self, epoch: int) -> TrainData:
        if self._made is None or self._made[0] != epoch:
            seed = derive_seed(self._seed, "segmentation", epoch)
            segmented = self._sampler.encode(self._lines, self._max_tokens, seed)
            encoded = Encoded({TEXT: segmented.ids, WORDS: segmented.words, WORD_SIZES: segmented.word_sizes})
            self._made = epoch, self._data(encoded)
        return self._made[1]

    def epoch(self, index: int) -> Sequence[IntArray]:
        """Draw up the global batches of an epoch."""
        return self._of(index).epoch(index)

    def batch(self, rows: IntArray, epoch: int) -> Any:
        """Make the batch of some rows."""
        return self._of(epoch).batch(rows, epoch)
