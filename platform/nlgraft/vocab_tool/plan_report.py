"""Reports of a transfer plan, before anything is changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.wording import name_some
from nlgraft.vocab.tokenizers.encoding import self_information
from nlgraft.vocab.tokenizers.vocabulary import SUBSTITUTE_ROLES
from nlgraft.vocab.transfer_plan import NormReport, Provenance, TransferPlan

WORST_FIRST = (
    Provenance.NOISE,
    Provenance.CHARACTERS,
    Provenance.BOUNDARY,
    Provenance.DENSE,
    Provenance.COMPOSED,
)
"""Provenances, the most doubtful first."""
IntArray = NDArray[np.int64]
Encoded = Sequence[Sequence[int]]
"""Ids of every line of a text, without special tokens."""
NUM_REASONS = 8
"""Reasons listed in the text report; the JSON has all."""
NUM_LISTED = 10
"""Special tokens listed likewise, and rows described in words."""


@dataclass(frozen=True)
class TextReport:
    """Lengths and bits of some text under both tokenizers.

    Attributes:
        num_lines: Lines.
        num_words: Words between spaces.
        old_tokens: Tokens of the old tokenizer.
        new_tokens: Tokens of the new tokenizer.
        old_fertility: Old tokens per word.
        new_fertility: New tokens per word.
        old_bits_per_byte: Self-information of the old tokens per byte of the text.
        new_bits_per_byte: The same of the new tokens.
        compression: New tokens per old token; below 1 the new vocabulary is more compact.
    """

    num_lines: int
    num_words: int
    old_tokens: int
    new_tokens: int
    old_fertility: float
    new_fertility: float
    old_bits_per_byte: float
    new_bits_per_byte: float
    compression: float

    @classmethod
    def of(
        cls,
        lines: Sequence[str],
        old_counts: IntArray,
        new_counts: IntArray,
    ) -> TextReport:
        """Measure a text, given how often each token of either tokenizer occurs in it."""
        num_words = sum(len(line.split()) for line in lines)
        num_bytes = max(1, sum(len(line.encode()) for line in lines))
        old_tokens, new_tokens = int(old_counts.sum()), int(new_counts.sum())
        return cls(
            num_lines=len(lines),
            num_words=num_words,
            old_tokens=old_tokens,
            new_tokens=new_tokens,
            old_fertility=old_tokens / max(1, num_words),
            new_fertility=new_tokens / max(1, num_words),
            old_bits_per_byte=self_information(old_counts) / num_bytes,
            new_bits_per_byte=self_information(new_counts) / num_bytes,
            compression=new_tokens / max(1, old_tokens),
        )

    def to_text(self) -> str:
        """Format the report as a part of a line."""
        return (
            f"on {self.num_lines} lines: {self.old_fertility:.2f} -> {self.new_fertility:.2f} tokens per "
            f"word, {self.old_bits_per_byte:.2f} -> {self.new_bits_per_byte:.2f} bits per byte, "
            f"{self.compression - 1:+.1%} tokens"
        )


@dataclass(frozen=True)
class SpecialTokens:
    """Old special tokens whose role, if they have one, no new token takes over.

    Attributes:
        kept: Those that were appended to the new vocabulary.
        lost: The others.
    """

    kept: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanReport:
    """A plan in numbers.

    Attributes:
        method: The method.
        num_old: Ids of the old vocabulary.
        num_new: Ids of the new vocabulary.
        counts: Rows by provenance.
        overlap: Share of new tokens of text that are copied.
        unused_old: Share of old tokens of text that no new row reads.
        text: Sequence lengths, if text was provided.
        reasons: Rows by reason, most frequent first.
        norms: Row norms before and after, if a model was provided.
        worst: The most doubtful rows, in words.
        lost_roles: Role -> old special token, of roles that no new token takes over.
        specials: Old special tokens that were appended or are lost.
    """

    method: str
    num_old: int
    num_new: int
    counts: dict[str, int]
    overlap: float
    unused_old: float
    text: TextReport | None
    reasons: dict[str, int]
    norms: NormReport | None
    worst: tuple[str, ...]
    lost_roles: dict[str, str]
    specials: SpecialTokens

    def to_json(self) -> dict[str, Any]:
        """Convert the report to JSON values."""
        return asdict(self)

    @property
    def warnings(self) -> list[str]:
        """Consequences of the new vocabulary that the model's users should know."""
        consequences = {"pad": ": batches cannot be padded", "mask": ": masked-LM training needs one"}
        messages = [
            f"the new tokenizer has no {role} token, the old one has '{token}'{consequences.get(role, '')}; "
            "add one to the new tokenizer if the model needs it"
            for role, token in self.lost_roles.items()
        ]
        missing = [token for token in self.specials.lost if token not in self.lost_roles.values()]
        if missing:
            messages.append(
                f"the new tokenizer lacks {len(missing)} special tokens of the old one: "
                f"{name_some(missing, NUM_LISTED)}; --keep-special all appends them"
            )
        return messages

    @property
    def summary(self) -> str:
        """The plan in one line."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{self.method}, {self.num_old} -> {self.num_new} tokens ({counts})"

    def to_text(self) -> str:
        """Format the report for reading, one fact per line."""
        lines = [f"{self.method}: {self.num_old} old tokens, {self.num_new} new tokens"]
        lines += [
            f"  {name:<11}{count:>8}  {count / self.num_new:6.1%}" for name, count in self.counts.items()
        ]
        lines.append(
            f"  copied {self.overlap:.1%} of the tokens of text; {self.unused_old:.1%} of the old are unused"
        )
        if self.text is not None:
            lines.append(f"  {self.text.to_text()}")
        if kept := self.specials.kept:
            lines.append(
                f"  appended {len(kept)} special tokens of the old tokenizer: {name_some(kept, NUM_LISTED)}"
            )
        lines += [f"  {count:>8}  {reason}" for reason, count in [*self.reasons.items()][:NUM_REASONS]]
        if self.norms is not None:
            lines.append(f"  {self.norms.summary}")
            lines += [f"  warning: {warning}" for warning in self.norms.warnings]
        lines += [f"  ! {line}" for line in self.worst]
        return "\n".join(lines)


def report_plan(
    plan: TransferPlan,
    *,
    text: Sequence[str] = (),
    encoded: tuple[Encoded, Encoded] | None = None,
    norms: NormReport | None = None,
    specials: SpecialTokens | None = None,
) -> PlanReport:
    """Summarise a plan.

    Args:
        plan: The plan.
        text: Lines on which sequence lengths are measured, if any.
        encoded: The lines under the old and the new tokenizer; needed with text.
        norms: Row norms, if a model was given.
        specials: Special tokens that were appended or are lost.
    """
    kinds = plan.provenance
    no_text = [int(Provenance.SPECIAL), int(Provenance.GAP)]
    is_text = np.isin(kinds, no_text, invert=True)
    read = np.zeros(len(plan.old_surfaces), dtype=bool)
    read[plan.matrix.indices] = True
    sizes = len(plan.old_surfaces), len(plan)
    old_counts, counts = (
        np.bincount(np.array([i for line in ids for i in line], dtype=np.int64), minlength=size)
        for ids, size in zip(encoded or ((), ()), sizes, strict=True)
    )
    # With text, of one provenance the most frequent first.
    doubtful: list[int] = []
    for kind in WORST_FIRST:
        doubtful += sorted(plan.rows(kind).tolist(), key=lambda row: -counts[row])
    real = plan.is_real
    return PlanReport(
        method=plan.method,
        num_old=len(plan.old_surfaces),
        num_new=len(plan),
        counts=plan.counts(),
        overlap=float((kinds[is_text] == int(Provenance.COPY)).mean()) if is_text.any() else 0.0,
        unused_old=float((~read[real]).mean()) if real.any() else 0.0,
        text=TextReport.of(text, old_counts, counts) if text else None,
        norms=norms,
        # Reasons quote tokens, so each would be a reason of its own.
        reasons=dict(Counter(re.sub(r"'.*'", "...", reason) for reason in plan.reasons).most_common()),
        worst=tuple(
            plan.describe(row) + (f" [{counts[row]} times in the text]" if counts[row] else "")
            for row in doubtful[:NUM_LISTED]
        ),
        lost_roles={
            role: plan.old_surfaces[identity]
            for role, identity in plan.old_roles.items()
            if not {role, SUBSTITUTE_ROLES.get(role, role)} & plan.new_roles.keys()
        },
        specials=specials or SpecialTokens(),
    )
