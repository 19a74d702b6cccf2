"""Text with holes, from which a denoising model restores the text.

Source: Lewis et al. (2020), BART, section 2.2 (text infilling); Liu et al. (2020), mBART, section 2.2: spans
of Poisson length that cover 35 % of a text, each behind one mask. Differs: tokens are hidden, not whole
words, and sentences are not reordered, since examples are single sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nlgraft.text.batches import Ragged
from nlgraft.training.seeds import generator_for
from trainables.embedding_transfer.data import Encoded

DEV_EPOCH = -1
"""Number under which dev text gets its holes: no training epoch has it."""


def hide_spans(
    ids: Sequence[int], mask_id: int, *, rate: float, mean_span: float, generator: np.random.Generator
) -> list[int]:
    """Replace spans of a text by one mask each; a span of no tokens is a mask too many.

    Args:
        ids: Token ids.
        mask_id: Id of the mask.
        rate: Share of the tokens that are hidden, rounded to whole tokens.
        mean_span: Mean length of a span before the last one is cut to the share.
        generator: Source of randomness, one of its own for every text and epoch.

    Returns:
        The text with holes.
    """
    left = round(rate * len(ids))
    spans: list[int] = []
    while left and len(spans) < len(ids):
        spans.append(min(left, int(generator.poisson(mean_span))))
        left -= spans[-1]
    generator.shuffle(spans)
    # spans stand anywhere between the tokens that stay: choose places among tokens and spans together
    num_kept = len(ids) - sum(spans)
    places = set(generator.choice(num_kept + len(spans), size=len(spans), replace=False).tolist())
    rest, lengths = iter(ids), iter(spans)
    read: list[int] = []
    for place in range(num_kept + len(spans)):
        if place in places:
            for _ in range(next(lengths)):
                next(rest)
            read.append(mask_id)
        else:
            read.append(next(rest))
    return read


@dataclass(frozen=True)
class Infiller:
    """Makes new holes in a text in every epoch.

    **Determinism**: the holes of a line depend on the seed, the epoch and the line's number alone.

    Attributes:
        text: Lines as targets; their sources are not read.
        mask_id: Id of the mask.
        rate: Share of the tokens that are hidden.
        mean_span: Mean length of a span.
    """

    text: Encoded
    mask_id: int
    rate: float
    mean_span: float

    def epoch(self, index: int, seed: int) -> Encoded:
        """Make the examples of an epoch.

        Args:
            index: Number of the epoch.
            seed: Of the training.

        Returns:
            Lines with holes as sources, whole lines as targets.
        """
        lines = self.text.target
        sources = [
            hide_spans(
                lines[row].tolist(),
                self.mask_id,
                rate=self.rate,
                mean_span=self.mean_span,
                generator=generator_for(seed, "holes", index, row),
            )
            for row in range(len(lines))
        ]
        return Encoded(Ragged.of(sources), lines)
