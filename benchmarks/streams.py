"""False keeps, power and seeds of a stream of proposals.

``python -m benchmarks.streams`` simulates streams with the platform's decisions, levels and priors. Gains are
in standard deviations of the paired differences between seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.data.stream import Proposal, Step
from nlgraft.analysis.data.trials import Array
from nlgraft.analysis.policy.proposals import (
    FRESH_SEEDS,
    LOOKS,
    decide,
    false_share,
    noise_of,
    p_of_gain,
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
        num_real: Number of proposals that gain something, at random places.
        num: Proposals.
        limit: Most seeds of a proposal.
        spread: Deviation of the logarithm of a proposal's own deviation between seeds.
        is_shared: True if the kept config's scores are used again for every proposal until another is kept.
        is_patient: True if no proposal is given up before the limit.
        is_informed: True if whoever proposes knows the kept config's luck on its seeds, used again, and, of
            what gains nothing, proposes what varies little between seeds where that luck is bad.
    """

    gain: float = 2.0
    loss: float = 0.0
    num_real: int = 4
    num: int = 20
    limit: int = LOOKS[-1]
    spread: float = 0.3
    is_shared: bool = True
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
    places = rng.permuted(np.tile(np.arange(setting.num), (num_streams, 1)), axis=1)
    is_real = places < setting.num_real
    spreads = np.exp(setting.spread * rng.standard_normal(shape))
    truth = np.where(is_real, setting.gain, setting.loss) * np.sqrt((1 + spreads**2) / 2)
    out = Outcome(np.zeros(shape, bool), is_real, np.zeros(shape), np.zeros(shape), np.zeros(shape), truth)
    for stream in range(num_streams):
        _simulate(setting, rng, out, stream, spreads[stream])
    return out


def _simulate(setting: Setting, rng: np.random.Generator, out: Outcome, stream: int, spreads: Array) -> None:
    """Simulate one stream."""
    proposals: list[Proposal] = []
    base = rng.standard_normal(setting.limit) / np.sqrt(2)
    for place, spread in enumerate(spreads):
        if not setting.is_shared:
            base = rng.standard_normal(setting.limit) / np.sqrt(2)
        scale = spread / np.sqrt(2)
        if setting.is_informed and not out.is_real[stream, place] and p_of_gain(-base, None) < ALPHA:
            scale = 0.03
        prior = noise_of(proposals)
        gains = out.truth[stream, place] + scale * rng.standard_normal(setting.limit) - base
        level = stream_level(place, int(out.kept[stream, :place].sum()), ALPHA)
        num, is_kept = _decided(gains, level, prior, setting)
        step = Step(kind="decided", stream="", gains=tuple(gains[:num]))
        proposals.append(Proposal(step, step))
        out.kept[stream, place] = is_kept
        out.seeds[stream, place] = num + FRESH_SEEDS * is_kept
        out.first[stream, place] = gains[:num].mean()
        again = scale * rng.standard_normal(FRESH_SEEDS) - rng.standard_normal(FRESH_SEEDS) / np.sqrt(2)
        out.second[stream, place] = out.truth[stream, place] + again.mean()
        if is_kept:  # what is kept is compared on the seeds of its second measurement and new ones
            base = rng.standard_normal(setting.limit) / np.sqrt(2)


def _decided(gains: Array, level: float, prior: NoisePrior | None, setting: Setting) -> tuple[int, bool]:
    """Add seeds until a proposal is decided; return their number, and whether it is kept."""
    for look in LOOKS:
        if look <= setting.limit:
            decision = decide(gains[:look], level, prior, setting.limit)
            is_patient = setting.is_patient and look < setting.limit
            if decision == "KEEP" or (decision == "DISCARD" and not is_patient):
                return look, decision == "KEEP"
    return setting.limit, False


def report(num_streams: int) -> list[str]:
    """Simulate all settings and return Markdown tables."""
    settings = {
        "4 of 20 gain 2": Setting(),
        "the same, at most 12 seeds": Setting(limit=12),
        "4 of 20 gain 1": Setting(gain=1.0),
        "scores of what is kept not used again": Setting(is_shared=False),
        "proposals chosen in sight of those scores": Setting(is_informed=True),
        "nothing given up before 24 seeds": Setting(is_patient=True),
        "the others lose .5": Setting(loss=-0.5),
        "none gains": Setting(num_real=0),
        "none gains, noise of proposals differs by .7": Setting(num_real=0, spread=0.7),
        "none gains, chosen in sight": Setting(num_real=0, is_informed=True),
        "10 of 20 gain 2": Setting(num_real=10),
        "10 of 100 gain 1.5": Setting(gain=1.5, num=100, num_real=10),
    }
    lines = [
        f"{num_streams} streams each, bound {false_share(ALPHA)}, at most {LOOKS[-1]} seeds a proposal.",
        "",
        "| stream | false keeps: at the end | at the worst moment | power | seeds a proposal "
        "| bias first | bias again |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, setting in settings.items():
        streams = simulate(setting, num_streams)
        share = streams.false_share
        power = streams.kept[streams.is_real].mean() if streams.is_real.any() else float("nan")
        errors = [(estimates - streams.truth)[streams.kept] for estimates in (streams.first, streams.second)]
        bias = [error.mean() if len(error) else float("nan") for error in errors]
        lines.append(
            f"| {name} | {share[:, -1].mean():.4f} | {share.max(axis=1).mean():.4f} | {power:.2f} "
            f"| {streams.seeds.mean():.1f} | {bias[0]:+.2f} | {bias[1]:+.2f} |"
        )
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--num", type=int, default=500, help="streams of each setting")
    for line in report(parser.parse_args().num):
        print(line, flush=True)


if __name__ == "__main__":
    main()
