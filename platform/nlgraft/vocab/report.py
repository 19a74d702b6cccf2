"""What a transfer plan would do, told before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nlgraft.errors import DataError
from nlgraft.vocab.plan import Provenance, TransferPlan
from nlgraft.vocab.tokens import Tok
from nlgraft.vocab.vocabulary import Vocabulary

WORST_FIRST = (
    Provenance.NOISE,
    Provenance.CHARACTERS,
    Provenance.BOUNDARY,
    Provenance.DENSE,
    Provenance.COMPOSED,
)
"""Provenances in the order in which a reader should worry."""

TokenCounter = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class TextReport:
    """Sequence lengths of some text under both tokenizers.

    Attributes:
        num_lines: Lines.
        num_words: Words between spaces.
        old_tokens: Tokens of the old tokenizer.
        new_tokens: Tokens of the new tokenizer.
        old_fertility: Old tokens per word.
        new_fertility: New tokens per word.
        compression: New tokens per old token; below 1 the new vocabulary writes shorter.
    """

    num_lines: int
    num_words: int
    old_tokens: int
    new_tokens: int
    old_fertility: float
    new_fertility: float
    compression: float


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
        text: Sequence lengths, where text was given.
        worst: The rows a reader should worry about most, in words.
    """

    method: str
    num_old: int
    num_new: int
    counts: dict[str, int]
    overlap: float
    unused_old: float
    text: TextReport | None
    worst: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return asdict(self) | {"worst": list(self.worst)}

    def to_text(self) -> str:
        """Write the report for people, a line for each fact."""
        lines = [f"{self.method}: {self.num_old} old tokens, {self.num_new} new tokens"]
        lines += [
            f"  {name:<11}{count:>8}  {count / self.num_new:6.1%}" for name, count in self.counts.items()
        ]
        lines.append(
            f"  copied {self.overlap:.1%} of the tokens of text; {self.unused_old:.1%} of the old are unused"
        )
        if self.text is not None:
            text = self.text
            lines.append(
                f"  on {text.num_lines} lines: {text.old_fertility:.2f} -> {text.new_fertility:.2f} "
                f"tokens per word, {1 - text.compression:+.1%} saved"
            )
        lines += [f"  ! {line}" for line in self.worst]
        return "\n".join(lines)


def report_plan(
    plan: TransferPlan,
    *,
    text: Sequence[str] = (),
    old_counter: TokenCounter | None = None,
    new_counter: TokenCounter | None = None,
    num_worst: int = 10,
) -> PlanReport:
    """Describe a plan.

    Args:
        plan: The plan.
        text: Lines on which sequence lengths are measured; none: not measured.
        old_counter: Counts old tokens of lines; needed with text.
        new_counter: Counts new tokens of lines; needed with text.
        num_worst: How many rows to tell in words.

    Returns:
        The report.
    """
    kinds = plan.provenance
    is_text = np.isin(kinds, [int(k) for k in (Provenance.SPECIAL, Provenance.GAP)], invert=True)
    read = np.zeros(len(plan.old_surfaces), dtype=bool)
    read[plan.matrix.indices] = True
    worried = [row for kind in WORST_FIRST for row in plan.rows(kind).tolist()]
    real = plan.is_real
    return PlanReport(
        method=plan.method,
        num_old=len(plan.old_surfaces),
        num_new=len(plan),
        counts=plan.counts(),
        overlap=float((kinds[is_text] == int(Provenance.COPY)).mean()) if is_text.any() else 0.0,
        unused_old=float((~read[real]).mean()) if real.any() else 0.0,
        text=_measure(text, old_counter, new_counter) if text else None,
        worst=tuple(plan.describe(row) for row in worried[:num_worst]),
    )


def _measure(
    text: Sequence[str], old_counter: TokenCounter | None, new_counter: TokenCounter | None
) -> TextReport:
    assert old_counter is not None, "lengths need both tokenizers"
    assert new_counter is not None, "lengths need both tokenizers"
    num_words = sum(len(line.split()) for line in text)
    old_tokens, new_tokens = old_counter(text), new_counter(text)
    return TextReport(
        num_lines=len(text),
        num_words=num_words,
        old_tokens=old_tokens,
        new_tokens=new_tokens,
        old_fertility=old_tokens / max(1, num_words),
        new_fertility=new_tokens / max(1, num_words),
        compression=new_tokens / max(1, old_tokens),
    )


def token_counter(path: str | Path, vocabulary: Vocabulary) -> TokenCounter:
    """Find out how to count the tokens of a line under a tokenizer.

    Args:
        path: What the vocabulary was loaded from.
        vocabulary: The vocabulary.

    Returns:
        A function of lines. SentencePiece models and ``tokenizer.json`` run their own libraries; other
        vocabularies cut words at spaces.

    Raises:
        DataError: A ``tokenizer.json`` is given and ``tokenizers`` is not installed.
    """
    path = Path(path)
    json_file = path / "tokenizer.json" if path.is_dir() else path
    if json_file.suffix == ".json" and json_file.is_file():
        try:
            import tokenizers
        except ImportError:
            raise DataError(f"counting the tokens of {json_file} needs `pip install tokenizers`") from None
        fast = tokenizers.Tokenizer.from_file(str(json_file))
        return lambda lines: sum(len(e.ids) for e in fast.encode_batch([*lines], add_special_tokens=False))
    models = (
        [path] if path.suffix in (".model", ".spm") else sorted(path.glob("*.model")) if path.is_dir() else []
    )
    if models:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(models[0]))
        return lambda lines: sum(len(ids) for ids in processor.encode([*lines]))
    return lambda lines: sum(_count_pieces(vocabulary, word) for line in lines for word in line.split())


def _count_pieces(vocabulary: Vocabulary, word: str) -> int:
    tok = vocabulary.normalised(Tok(word.encode(), starts_word=True, ends_word=True))
    return max(1, len(vocabulary.segment(tok)))
