"""Effects of crossed factors: what a level changes on average, and whether two levels interact.

Factors are coded against their baseline, so that with two factors of two levels, scores y and baseline 0:

- main effect of A: ((y10 - y00) + (y11 - y01)) / 2, the change due to A averaged over the levels of B;
- interaction of A and B: (y11 - y01) - (y10 - y00), how much more A changes where B is off its baseline; 0
  when the effects of the two add up.

Source: Montgomery, Design and Analysis of Experiments, chapter 5. Differs: interactions are not halved, so
that they are in the unit of a difference between cells.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data.design import Axes, Cell
from nlgraft.study.data.space import same


@dataclass(frozen=True)
class Contrast:
    """Weights of cells that isolate one effect.

    Attributes:
        levels: The levels off their baseline: one for a main effect, two for an interaction.
        label: ``generator=att_eg``, ``without segments``, or two of them joined by ``×``.
        terms: Weight and cell; the weights sum to zero.
    """

    levels: Mapping[str, Any]
    label: str
    terms: tuple[tuple[float, Cell], ...]


@dataclass(frozen=True)
class Effect:
    """An effect on one metric.

    Attributes:
        contrast: The contrast that isolates it.
        comparison: Its size as a difference; ``p_holm`` is adjusted over all effects on the metric.
    """

    contrast: Contrast
    comparison: Comparison

    @property
    def is_interaction(self) -> bool:
        """True for an interaction, False for a main effect."""
        return len(self.contrast.levels) > 1


@dataclass(frozen=True)
class GainCurve:
    """What a level gains over its factor's baseline at the levels of another factor.

    Attributes:
        label: The level: ``arm=src_elmo``.
        gains: Level of the other factor, as text, and the comparison there.
    """

    label: str
    gains: tuple[tuple[str, Comparison], ...]


def contrasts(axes: Axes, cells: Sequence[Cell]) -> list[Contrast]:
    """List the effects that can be estimated from cells.

    Every effect is averaged, with equal weights, over those combinations of the other factors for which all
    the cells it needs exist, so that excluded combinations leave it balanced.

    Returns:
        Main effects, then interactions of two, in the study's order; empty where no two factors are crossed,
        because the effects are then the comparisons with the baseline.
    """
    # Effects of one factor are its comparisons with the baseline, which are tested already.
    if len(axes.levels) < 2:
        return []
    by_levels = {canonical_json(cell.levels): cell for cell in cells}
    baseline = axes.baseline
    off = [
        (name, level)
        for name, choices in axes.levels.items()
        for level in choices
        if not same(level, baseline[name])
    ]
    pairs = [pair for pair in itertools.combinations(off, 2) if pair[0][0] != pair[1][0]]
    interactions = [contrast for pair in pairs if (contrast := _contrast(axes, by_levels, dict(pair))).terms]
    mains = [contrast for choice in off if (contrast := _contrast(axes, by_levels, dict([choice]))).terms]
    return [*mains, *interactions] if interactions else []


def _contrast(
    axes: Axes,
    by_levels: Mapping[str, Cell],
    levels: Mapping[str, Any],
) -> Contrast:
    corners = [  # combinations of levels and baselines; the sign is -1 for an odd number of baselines
        (
            (-1) ** is_off.count(False),
            {n: levels[n] if off else axes.baseline[n] for n, off in zip(levels, is_off, strict=True)},
        )
        for is_off in itertools.product((True, False), repeat=len(levels))
    ]
    blocks = []
    for cell in by_levels.values():
        if all(same(cell.levels[name], level) for name, level in levels.items()):
            keys = [(sign, canonical_json({**cell.levels, **corner})) for sign, corner in corners]
            if all(key in by_levels for _, key in keys):
                blocks.append([(sign, by_levels[key]) for sign, key in keys])
    terms = tuple((sign / len(blocks), cell) for block in blocks for sign, cell in block)
    label = " × ".join(axes.departure(name, level) for name, level in levels.items())
    return Contrast(levels, label, terms)
