"""The table of `nlgraft ledger`: what was decided fits the line, and says on which metric and which way."""

import pytest

from nlgraft.analysis.data.ledger import Entry, LedgerQuestion, Segments
from nlgraft.commands.terminal import ledger_list


def entry(metrics, difference):
    questions = [
        LedgerQuestion(
            metric=f"test/{metric}",
            cells=("a", "b"),
            labels=("arm=trice", "arm=gradual_dual_bart"),
            family="claims",
            seeds=(1, 2, 3),
            difference=difference,
            p_ledger=0.007,
            verdict="significant",
        )
        for metric in metrics
    ]
    return Entry(
        time="2026-11-24T13:26:38Z", study="s", variant="s", system="x", segments=Segments.of(["a"]),
        baseline="b", cells=("a", "b"), metrics=("test/bleu",),
        plan="seeds", alpha=0.05, asked=tuple(questions),
    )  # fmt: skip


def test_what_was_decided_wraps_and_says_which_way(capsys):
    ledger_list({1: entry(["bleu", "chrf", "ter"], -2.54)}, {})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 160
    assert lines[0].split() == ["analysis", "day", "study", "metric", "asked", "seeds", "segments"]
    assert lines[3].split() == ["analysis", "decided"]
    text = " ".join(" ".join(lines[4:]).split())
    first = "arm=trice against arm=gradual_dual_bart on test/bleu: −2.540 (p = 0.007)"
    assert text.startswith(f"1 {first}; arm=trice against")


@pytest.mark.parametrize(
    ("difference", "shown"), [(-0.004, "−0.0040"), (0.0123, "+0.0123"), (12.34, "+12.34")]
)
def test_a_small_difference_that_was_decided_keeps_its_sign(capsys, difference, shown):
    ledger_list({1: entry(["loss"], difference)}, {})
    assert f"on test/loss: {shown} (p = 0.007)" in " ".join(capsys.readouterr().out.split())
