"""A model of the time of a training step on several workers.

With N workers, one on each node, a step takes

    c / N  +  2 (N - 1) / N · r  +  E(N) · s

c is the computation on the batch, which the workers divide evenly. r is the time in which the gradients
cross one line: a ring sends 2 (N - 1) / N of them from each worker, the least that is possible (Patarasuk and
Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations). s is the standard deviation
of a worker's time: all wait for the slowest, which is E(N) deviations above the mean, the expected maximum of
N normal draws.

c is what one worker took. s is fitted to what two took beyond c / 2 + r, with E(2) = 1 / sqrt(pi).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

BYTES_PER_WEIGHT = 4
BITS_PER_S = 10e9
ASSUMPTIONS = (
    "one worker on each node, the same batch divided evenly",
    f"a ring all-reduce of {BYTES_PER_WEIGHT} bytes of each weight over {BITS_PER_S / 1e9:g} Gbit/s, which "
    "no computation hides",
    "what two workers took beyond half of one's time and that all-reduce is waiting for the slower, whose "
    "time is normal with the same deviation on every number of nodes",
    "a stage's mean time in this store, with evaluation and start, spread over the most steps it may take",
)


@dataclass(frozen=True)
class StepTime:
    """The times to which the model of one training is fitted.

    Attributes:
        name: Name of the stage.
        one_s: Seconds of a step on one worker, measured.
        two_s: On two, measured; None if that was never timed: then no waiting is modelled.
        line_s: Seconds in which the gradients cross one line.
    """

    name: str
    one_s: float
    two_s: float | None
    line_s: float

    def parts(self, num_workers: int) -> dict[str, float]:
        """Return the seconds of a step by what they are spent on."""
        waiting_s = 0.0
        if self.two_s is not None:
            excess_s = max(0.0, self.two_s - self.one_s / 2 - self.line_s)
            waiting_s = excess_s * expected_maximum(num_workers) / expected_maximum(2)
        return {
            "compute": self.one_s / num_workers,
            "all-reduce": 2 * (num_workers - 1) / num_workers * self.line_s,
            "waiting": waiting_s,
        }

    def describe(self, num_workers: int) -> str:
        """Write the model in one line for people."""
        parts = self.parts(num_workers)
        total_s = sum(parts.values())
        named = ", ".join(f"{seconds:.3g} {name}" for name, seconds in parts.items())
        two = "not timed with two workers" if self.two_s is None else f"{self.two_s:.3g} s with two"
        speed = f"{self.one_s / total_s:.2g} times as fast" if total_s else "no time"
        return f"{total_s:.3g} s ({named}), {speed}; measured: {self.one_s:.3g} s with one worker, {two}"

    def to_json(self, num_workers: int) -> dict[str, object]:
        """Turn measured and modelled seconds into JSON values."""
        return {**vars(self), "num_workers": num_workers, "parts_s": self.parts(num_workers)}


def expected_maximum(num_draws: int) -> float:
    """Compute the expected maximum of standard normal draws: the integral of x n phi(x) Phi(x)^(n - 1)."""
    normal, width = NormalDist(), 1 / 128
    points = (index * width for index in range(-1024, 1025))
    return width * sum(x * num_draws * normal.pdf(x) * normal.cdf(x) ** (num_draws - 1) for x in points)
