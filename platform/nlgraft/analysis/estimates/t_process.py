"""The t statistic of one sample as it grows by one value after another, under the null hypothesis.

Let x be n independent normal values with mean zero, and r = sum(x) / (sqrt(n) |x|) the cosine between x and
the diagonal, so that t = sqrt(n - 1) r / sqrt(1 - r^2). The direction of x is independent of its length, and
the past values of r depend on the direction alone: r is a Markov process. One value more turns x within the
plane of x and the new axis by an angle phi,

    r' = (sqrt(n) cos(phi) r + sin(phi)) / sqrt(n + 1),   with sqrt(n) tan(phi) Student's t with n d. f.,

which gives the distribution of r' for each r in closed form. States are bins of p-values, equally wide in z
(the normal deviate of the two-sided p), so that they hold equal shares of the tails whatever n is.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from nlgraft.analysis.data.trials import Array

_WIDTH = 0.05
_NUM_PLACES = 4
_MANY = 20
_FARTHEST = 7.5
EDGES: Array = np.linspace(0.0, _FARTHEST, round(_FARTHEST / _WIDTH) + 1)
"""Edges of the bins in z, shape (bins + 1,); the last bin has no upper end."""


def first_masses(num_values: int) -> Array:
    """Return the probability of each bin, shape (bins,); it is the same for every number of values."""
    assert num_values > 1
    upper = np.append(2 * ndtr(EDGES[1:-1]) - 1, 1.0)
    return np.diff(upper, prepend=0.0)


@lru_cache(maxsize=64)
def transition(num_values: int) -> Array:
    """Return the probabilities to pass from bin i at n values to bin j at n + 1, shape (bins, bins)."""
    # Several places in each bin: with few values r' has a bound near by, at which its density is infinite.
    number = _NUM_PLACES if num_values < _MANY else 1
    offsets = _WIDTH * (np.arange(number) + 0.5) / number
    places = EDGES[:-1, None] + offsets
    weights: Array = np.exp(-(places**2) / 2)
    start = _cosine(places.ravel(), num_values)[:, None]
    ends = _cosine(EDGES[1:-1], num_values + 1)
    inside = _below(ends, start, num_values) - _below(-ends, start, num_values)
    inside = inside.reshape(*places.shape, -1)
    upper = np.einsum("bp,bpe->be", weights / weights.sum(axis=1, keepdims=True), inside)
    return np.diff(upper, axis=1, prepend=0.0, append=1.0)


def _cosine(z: Array, num_values: int) -> Array:
    """Return r at the t statistic that has the two-sided p-value of a normal deviate."""
    t = -stdtrit(num_values - 1, ndtr(-z))
    return t / np.sqrt(t**2 + num_values - 1)


def _below(ends: Array, cosines: Array, n: int) -> Array:
    """Return the probability that r' is at most each end, given r, shape (cosines, ends).

    With A = sqrt(1 + n r^2) and tan(delta) = sqrt(n) r it is sqrt(n + 1) r' = A sin(phi + delta), which rises
    and falls again on the half circle that phi has.
    """
    delta = np.arctan(np.sqrt(n) * cosines)
    sine = np.sqrt(n + 1) * ends / np.sqrt(1 + n * cosines**2)
    alpha = np.arcsin(np.clip(sine, -1.0, 1.0))
    share = _share(alpha - delta, n) + 1 - _share(np.pi - alpha - delta, n)
    # below the half circle the other branch, from -pi - alpha, has begun
    share = share + _share(-np.pi - alpha - delta, n)
    return np.where(sine >= 1, 1.0, np.where(sine <= -1, 0.0, np.clip(share, 0.0, 1.0)))


def _share(angle: Array, n: int) -> Array:
    """Return the probability that phi is at most an angle."""
    inner = np.clip(angle, -np.pi / 2 + 1e-12, np.pi / 2 - 1e-12)
    return np.where(
        angle >= np.pi / 2, 1.0, np.where(angle <= -np.pi / 2, 0.0, stdtr(n, np.sqrt(n) * np.tan(inner)))
    )
