"""Self-information of a text under a vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def self_information(counts_V: NDArray[np.integer]) -> float:
    """Add up -log2 p over the tokens of a text, p a token's relative frequency in it, in bits.

    Args:
        counts_V: Occurrences of each token in the text.

    Source: Mosin et al. (2021), section 5, who print log2(1 / f) with the sign turned and counts for f, which
    would grow with the text's size.
    """
    counts = counts_V[counts_V > 0]
    return float((counts * np.log2(counts.sum() / counts)).sum())
