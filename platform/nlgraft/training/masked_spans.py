"""Text infilling: spans of a text are masked, and a denoising model reconstructs the text.

Source: Lewis et al. (2020), BART, section 2.2 (text infilling); Liu et al. (2020), mBART, section 2.2: spans
of Poisson length that cover 35 % of a text, each replaced by one mask. Differs: tokens are masked, not whole
words, and sentences are not reordered, since examples are single sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nlgraft.text.batches import Ragged
from nlgraft.training.seeds import generator_for


def mask_spans(
    ids: Sequence[int], mask_id: int, *, rate: float, mean_tokens: float, generator: np.random.Generator
) -> list[int]:
    """Replace spans of a text by one mask each; a span of no tokens inserts a mask.

    Args:
        ids: Token ids.
        mask_id: Id of the mask.
        rate: Share of the tokens that are masked, rounded to whole tokens.
        mean_tokens: Mean length of a span before the last one is cut to the share.
        generator: Random generator, a separate one for every text and epoch.
    """
    num_remaining = round(rate * len(ids))
    spans: list[int] = []
    # Spans of no tokens use up nothing of the share, so the number of spans is limited as well.
    while num_remaining and len(spans) < len(ids):
        spans.append(min(num_remaining, int(generator.poisson(mean_tokens))))
        num_remaining -= spans[-1]
    # The last span was cut to the remaining share; it may stand anywhere.
    generator.shuffle(spans)
    # spans stand anywhere between the tokens that stay: choose places among tokens and spans together
    num_kept = len(ids) - sum(spans)
    places = set(generator.choice(num_kept + len(spans), size=len(spans), replace=False).tolist())
    rest, lengths = iter(ids), iter(spans)
    masked: list[int] = []
    for place in range(num_kept + len(spans)):
        if place in places:
            for _ in range(next(lengths)):
                next(rest)
            masked.append(mask_id)
        else:
            masked.append(next(rest))
    return masked


@dataclass(frozen=True)
class MaskedSpans:
    """A stream whose spans are masked anew in every epoch.

    **Determinism**: the masked spans of a line depend on the seed, the epoch and the line's number alone.

    Attributes:
        text: The whole lines.
        mask_id: Id of the mask.
        rate: Share of the tokens that are masked.
        mean_tokens: Mean length of a span.
    """

    text: Ragged
    mask_id: int
    rate: float
    mean_tokens: float

    def __len__(self) -> int:
        return len(self.text)

    def epoch(self, index: int, seed: int) -> Ragged:
        """Mask the lines for an epoch."""
        return Ragged.of(
            mask_spans(
                self.text[row].tolist(),
                self.mask_id,
                rate=self.rate,
                mean_tokens=self.mean_tokens,
                generator=generator_for(seed, "masked spans", index, row),
            )
            for row in range(len(self.text))
        )
