"""Verdicts on published claims.

An ordering (``better``, ``worse``) is *supported* when our difference has the claimed sign and is
significant, *contradicted* when it has the other sign and is significant, *equal* when it is significantly
below the study's margin of the metric, else *undecided*. With a margin δ of its own the difference is tested
against -δ instead of 0: no worse by more than δ. A difference of gains (``exceeds``) is tested as an ordering
is. One seed decides nothing, nor does one pretraining that the cells do not share.

On other data than the claim's an ordering goes the *same direction* or the *opposite direction*; that neither
supports nor contradicts it. Published figures are given beside ours only on the same data, and only when both
were computed in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.basics.wording import count
from nlgraft.study.data.claim import Claim

Verdict = Literal[
    "supported", "contradicted", "equal", "undecided", "not run", "same direction", "opposite direction"
]
_OF_MARGIN: Mapping[Verdict, str] = {
    "same direction": "no worse by more than {:g}",
    "opposite direction": "worse by more than {:g}",
}
"""Words for a claim of *no worse by more than* on other data."""

_NOT_COMPARED = frozenset({"version", "seed", "bs", "ar"})


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """Our answer to one claim.

    Attributes:
        claim: The claim.
        comparison: Our ``better`` minus ``worse``, or one gain minus the other.
        values: Our means of the claim's cells.
        direction: Direction in which the metric improves.
        alpha: Level of significance.
        other_data: How our data differ from the claim's; empty if they are the same.
        why_not: Why published figures would not be shown beside ours; empty when they are.
        has_run: False if no trial of one of the claim's cells has been started.
    """

    claim: Claim
    comparison: Comparison
    values: tuple[float | None, ...]
    direction: Literal["maximize", "minimize"]
    alpha: float
    other_data: str = ""
    why_not: str = ""
    has_run: bool = True

    @property
    def is_as_claimed(self) -> bool | None:
        """True for a difference as claimed, False for one the other way; None if neither is significant."""
        difference = self.comparison.difference
        if difference is None or not self.comparison.is_significant(self.alpha):
            return None
        return (difference > self.comparison.null) == (self.direction == "maximize")

    @property
    def verdict(self) -> Verdict:
        """The answer."""
        if self.is_as_claimed is None:
            if self.comparison.standing == "equal":
                return "equal"
            return "undecided" if self.has_run else "not run"
        if self.other_data:
            return "same direction" if self.is_as_claimed else "opposite direction"
        return "supported" if self.is_as_claimed else "contradicted"

    @property
    def explanation(self) -> str:
        """The reason, as one sentence."""
        compared = self.comparison
        if self.is_as_claimed is not None:
            side = f"in the {'claimed' if self.is_as_claimed else 'other'} direction"
            if self.claim.margin:
                side = f"{'not worse' if self.is_as_claimed else 'worse'} by more than {self.claim.margin:g}"
            exact = compared.is_exact
            return f"{side}, {'identical for every seed' if exact else f'significant at {self.alpha:g}'}"
        if self.verdict == "equal":
            return f"the difference is significantly below the margin of {compared.margin:g}"
        if compared.difference is None:
            return "; ".join(compared.notes)
        if compared.open_because:
            return compared.open_because
        if compared.num_seeds < 2:
            return "one seed decides nothing"
        if compared.is_same:
            return "every score is the same"
        if compared.basis == "exploratory":
            return compared.notes[-1]
        if compared.seeds_more is not None:
            return f"not significant with {compared.num_seeds} seeds at {self.alpha:g}"
        return "; ".join(compared.notes) if compared.p is None else "its looks will hardly decide it"

    @property
    def why_not_comparable(self) -> str:
        """Why the published figures are not shown beside ours; empty when they are."""
        return self.why_not if self.claim.figures else "no published figures"

    @property
    def figures(self) -> tuple[float, ...]:
        """The published figures of the claim's cells, if they can be compared with ours."""
        return () if self.why_not_comparable else tuple(self.claim.figures)

    @property
    def seeds_more(self) -> int | None:
        """Further seeds that would probably decide it; None when no number does, or it is decided."""
        return self.comparison.seeds_more if self.verdict == "undecided" else None

    @property
    def word(self) -> str:
        """The verdict; *exploratory* where there cannot be any."""
        is_exploratory = self.verdict == "undecided" and self.comparison.basis == "exploratory"
        return "exploratory" if is_exploratory else self.verdict

    @property
    def text(self) -> str:
        """The verdict in words, with the number of seeds that an undecided one lacks."""
        text = self.word
        if text == "equal":
            text = f"equal within {self.comparison.margin:g} {self.comparison.unit}"
        elif self.claim.margin:  # the difference itself may go either way
            text = _OF_MARGIN.get(self.verdict, text).format(self.claim.margin)
        if self.comparison.open_because:
            text += f": {self.comparison.open_because}"
        if self.seeds_more is not None:
            text += f" ({count(self.seeds_more, 'seed')} more)"
        elif text == "undecided" and self.comparison.equal_within is not None:
            text += f" (equal within {self.comparison.equal_within:g} {self.comparison.unit})"
        elif self.verdict not in ("undecided", "not run") and self.comparison.condition:
            text += f" {self.comparison.condition}"
        return f"{text}, other data" if self.other_data and self.verdict != "not run" else text

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return {
            "text": self.claim.text,
            "source": self.claim.source,
            "metric": self.claim.metric,
            "verdict": self.verdict,
            "answer": self.text,
            "explanation": self.explanation,
            "seeds_more": self.seeds_more,
            "margin": self.claim.margin,
            "figures": list(self.figures),
            "other_data": self.other_data,
            "is_comparable": not self.why_not_comparable,
            "why_not_comparable": self.why_not_comparable,
            "ours": list(self.values),
            "comparison": self.comparison.to_json(),
        }


def signatures_differ(published: str | None, own_signature: str | None) -> str:
    """Say why a published figure was computed in another way than ours.

    Signatures are ``key:value`` pairs and words joined by ``|``, as sacreBLEU prints them. A published one
    may be partial: ours must agree on the keys that it has, and have its words. Versions and random seeds are
    not compared.

    Returns:
        A sentence without full stop; empty when the figures can be compared.
    """
    if published is None:
        return "the paper does not state how its metric was computed"
    if own_signature is None:
        return "our metric has no signature"
    published_settings, own_settings = _settings(published), _settings(own_signature)
    clashes = [
        f"{key}:{value}, ours {own_settings.get(key, 'unknown')}" if value else f"{key}, ours {own_signature}"
        for key, value in published_settings.items()
        if own_settings.get(key) != value
    ]
    return f"signatures differ ({', '.join(clashes)})" if clashes else ""


def _settings(signature: str) -> Mapping[str, str]:
    pairs = (part.partition(":") for part in signature.split("|"))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip() not in _NOT_COMPARED}
