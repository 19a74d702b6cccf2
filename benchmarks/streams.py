"""False keeps, power and seeds of a stream of proposals.

``python -m benchmarks.streams`` simulates streams with the platform's evidence and levels. Gains are in
standard deviations of the paired differences between seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.policy.proposals import (
    FIRST_SEEDS,
    FRESH_SEEDS,
    FUTILE,
    GAINS,
    LIMIT,
    log_evidence_of_gain,
    stream_level,
)

RANDOM_SEED = 20261124
ALPHA = 0.05


@dataclass(frozen=True)
class Setting:
    """A kind of stream.

    Attributes:
        gain: Gain of the proposals that gain something.
        loss: Gain of the others, at most 0.
        share: Share of proposals that gain something.
        num: Proposals.
        limit: Most seeds of a proposal.
        is_shared: True if the kept config's scores are used again for every proposal until another is kept.
        is_patient: True if no proposal is given up before the limit.
        is_informed: True if whoever proposes knows the kept config's luck on its seeds, used again, and, of
            what gains nothing, proposes what varies little between seeds where that luck is bad.
    """

    gain: float = 1.5
    loss: float = 0.0
    share: float = 0.1
    num: int = 200
    limit: int = LIMIT
    is_shared: bool = False
    is_patient: bool = False
    is_informed: bool = False


@dataclass
class Outcome:
    """Streams of one setting, by proposal, shape (streams, proposals).

    Attributes:
        kept: True where it was kept.
        is_real: True where something is gained.
        seeds: Seeds used, those of the second measurement included.
        first: Mean gain over the seeds that decided.
        second: Mean gain over fresh seeds.
        truth: True gain.
    """

    kept: NDArray[np.bool_]
    is_real: NDArray[np.bool_]
    seeds: Array
    first: Array
    second: Array
    truth: Array

    @property
    def false_share(self) -> Array:
        """Share of false keeps among the keeps after each proposal, shape (streams, proposals)."""
        false = np.cumsum(self.kept & ~self.is_real, axis=1)
        return false / np.maximum(1, np.cumsum(self.kept, axis=1))


def simulate(setting: Setting, num_streams: int, seed: int = RANDOM_SEED) -> Outcome:
    """Simulate streams."""
    rng = np.random.default_rng(seed)
    shape = (num_streams, setting.num)
    is_real = rng.random(shape) < setting.share
    truth = np.where(is_real, setting.gain, setting.loss)
    out = Outcome(np.zeros(shape, bool), is_real, np.zeros(shape), np.zeros(shape), np.zeros(shape), truth)
    base = rng.standard_normal((num_streams, setting.limit)) / np.sqrt(2)
    for place in range(setting.num):
        if not setting.is_shared:
            base = rng.standard_normal(base.shape) / np.sqrt(2)
        own = rng.standard_normal(base.shape) / np.sqrt(2)
        if setting.is_informed:
            own *= np.where(is_real[:, place, None], 1.0, _chosen_noise(base)[:, None])
        gains = truth[:, place, None] + own - base
        num_kept = out.kept[:, :place].sum(axis=1)
        levels = np.array([stream_level(place, int(kept), ALPHA) for kept in num_kept])
        kept, used = _run(gains, levels, setting)
        out.kept[:, place] = kept
        out.seeds[:, place] = used + FRESH_SEEDS * kept
        out.first[:, place] = (
            np.where(np.arange(setting.limit) < used[:, None], gains, 0.0).sum(axis=1) / used
        )
        fresh = rng.standard_normal((num_streams, FRESH_SEEDS))
        out.second[:, place] = truth[:, place] + fresh.mean(axis=1)
        if (
            setting.is_shared
        ):  # the kept config is compared on the seeds of its second measurement and new ones
            base = np.where(kept[:, None], rng.standard_normal(base.shape) / np.sqrt(2), base)
    return out


def _chosen_noise(base: Array) -> Array:
    """Choose the noise of proposals that gain nothing in sight of the kept config's scores."""
    best = np.max([log_evidence_of_gain(-base[:, :num]) for num in range(FIRST_SEEDS, base.shape[1])], axis=0)
    return np.where(best > 0, 0.05, 1.0)


def _run(gains: Array, levels: Array, setting: Setting) -> tuple[NDArray[np.bool_], Array]:
    """Add seeds until each proposal is decided; return what is kept, and the seeds used."""
    kept, is_open = np.zeros(len(gains), bool), np.ones(len(gains), bool)
    used = np.full(len(gains), float(setting.limit))
    for num in range(FIRST_SEEDS, setting.limit + 1):
        part = gains[is_open, :num]
        is_kept = log_evidence_of_gain(part) >= -np.log(levels[is_open])
        is_futile = log_evidence_of_gain(part, GAINS[:1]) <= np.log(FUTILE)
        is_over = is_kept | (is_futile & (not setting.is_patient)) | (num == setting.limit)
        places = np.flatnonzero(is_open)
        kept[places[is_kept]] = True
        used[places[is_over]] = num
        is_open[places[is_over]] = False
        if not is_open.any():
            break
    return kept, used


def report(num_streams: int) -> list[str]:
    """Simulate all settings and return Markdown tables."""
    settings = {
        "10 % gain 1.5": Setting(),
        "the kept config's seeds used again": Setting(is_shared=True),
        "the same, chosen in sight of those seeds": Setting(is_shared=True, is_informed=True),
        "nothing given up before 24 seeds": Setting(is_patient=True),
        "the others lose .5": Setting(loss=-0.5),
        "none gains": Setting(share=0.0),
        "half gain 1.5": Setting(share=0.5),
        "10 % gain 1": Setting(gain=1.0),
        "10 % gain 2": Setting(gain=2.0),
        "at most 8 seeds": Setting(limit=8),
        "at most 12 seeds": Setting(limit=12),
        "at most 16 seeds": Setting(limit=16),
    }
    lines = [
        f"{num_streams} streams of 200 proposals each, at most {LIMIT} seeds a proposal unless said.",
        "",
        "| stream | false keeps: at the end | at the worst moment | power | seeds a proposal "
        "| bias first | bias again |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, setting in settings.items():
        found = simulate(setting, num_streams)
        share = found.false_share
        power = found.kept[found.is_real].mean() if found.is_real.any() else float("nan")
        errors = [(one - found.truth)[found.kept] for one in (found.first, found.second)]
        bias = [error.mean() if len(error) else float("nan") for error in errors]
        lines.append(
            f"| {name} | {share[:, -1].mean():.4f} | {share.max(axis=1).mean():.4f} | {power:.2f} "
            f"| {found.seeds.mean():.1f} | {bias[0]:+.2f} | {bias[1]:+.2f} |"
        )
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--num", type=int, default=1000, help="streams of each setting")
    for line in report(parser.parse_args().num):
        print(line, flush=True)


if __name__ == "__main__":
    main()
