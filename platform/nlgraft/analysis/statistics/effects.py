"""Effects of factors that are crossed: what a level does on average, and whether two need each other.

Factors are coded against their baseline, so that with two factors of two levels, scores y and baseline 0:

- main effect of A: ((y10 - y00) + (y11 - y01)) / 2, what A does averaged over the levels of the others;
- interaction of A and B: (y11 - y01) - (y10 - y00), how much more A does where B is off its baseline; 0 when
  the effects of the two just add up.

Source: Montgomery, Design and Analysis of Experiments, chapter 5; interactions are not halved, as there for
factors coded -1 and 1, so that they are in the unit of a difference between cells.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nlgraft.analysis.statistics.comparison import Comparison
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data.design import Axes, Cell
from nlgraft.study.data.space import same


@dataclass(frozen=True)
class Contrast:
    """Cells weighed against each other so that one effect is left.

    Attributes:
        levels: The levels off their baseline whose effect it is: one of a main effect, two of an interaction.
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
        contrast: Whose effect it is.
        comparison: The effect as a difference; ``p_holm`` is adjusted over all effects on the metric.
    """

    contrast: Contrast
    comparison: Comparison

    @property
    def is_interaction(self) -> bool:
        """Whether it says how two levels depend on each other."""
        return len(self.contrast.levels) > 1


def contrasts(axes: Axes, cells: Sequence[Cell]) -> list[Contrast]:
    """List the effects that cells show.

    Every effect is averaged, with equal weights, over those combinations of the other factors for which all
    the cells it needs are there, so that excluded combinations leave it balanced.

    Args:
        axes: Factors, components and their baselines.
        cells: The cells of the study.

    Returns:
        Main effects, then interactions of two, in the study's order; nothing where no two factors are
        crossed, because the comparisons with the baseline are then all there is.
    """
    known = {canonical_json(cell.levels): cell for cell in cells}
    baseline = axes.baseline
    off = [
        (name, level)
        for name, choices in axes.levels.items()
        for level in choices
        if not same(level, baseline[name])
    ]
    pairs = [pair for pair in itertools.combinations(off, 2) if pair[0][0] != pair[1][0]]
    interactions = [found for pair in pairs if (found := _contrast(axes, known, dict(pair))).terms]
    mains = [found for one in off if (found := _contrast(axes, known, dict([one]))).terms]
    return [*mains, *interactions] if interactions else []


def _contrast(axes: Axes, known: Mapping[str, Cell], levels: Mapping[str, Any]) -> Contrast:
    blocks = []
    for cell in known.values():
        if all(same(cell.levels[name], level) for name, level in levels.items()):
            corners = [
                (sign, known.get(canonical_json({**cell.levels, **corner})))
                for sign, corner in _corners(levels, axes.baseline)
            ]
            block = [(sign, corner) for sign, corner in corners if corner is not None]
            blocks += [block] if len(block) == len(corners) else []
    terms = tuple((sign / len(blocks), cell) for block in blocks for sign, cell in block)
    label = " × ".join(axes.departure(name, level) for name, level in levels.items())
    return Contrast(levels, label, terms)


def _corners(levels: Mapping[str, Any], baseline: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Walk the combinations of levels and baselines; minus where an odd number is at the baseline."""
    for is_off in itertools.product((True, False), repeat=len(levels)):
        corner = {
            name: levels[name] if off else baseline[name] for name, off in zip(levels, is_off, strict=True)
        }
        yield (-1) ** is_off.count(False), corner
