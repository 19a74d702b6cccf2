"""Metrics that a trial of vocabulary transfer reports."""

from __future__ import annotations

from nlgraft.stages.metrics import CLASSIFICATION, EXCHANGE, MASKED, TRAINING, fixed, more, prefixed

NUM_LENGTHS = 4
"""Number of groups by length into which the dev lines are divided to measure speed."""


MEASURES = {
    "text/documents": fixed("maximize", "lines", "Lines of downstream text, all splits (Table 2)."),
    "text/bytes": fixed("maximize", "bytes", "Downstream text in UTF-8, all splits (Table 2)."),
    "text/unique_words": fixed("maximize", "words", "Distinct space-separated words, all splits (Table 2)."),
    "text/tokens_per_line": fixed(
        "minimize", "tokens", "Mean tokens per test line in the trial's vocabulary."
    ),
    "text/tokens_per_word": fixed("minimize", "tokens", "Mean tokens per space-separated word of test."),
    "text/bits_per_byte": fixed(
        "minimize", "bits", "Self-information of the test tokens per byte of their text (section 5)."
    ),
    "compression/tokens": fixed(
        "minimize", "ratio", "Test tokens in the trial's vocabulary relative to the old one."
    ),
    "compression/self_information": fixed(
        "minimize",
        "ratio",
        "Self-information of test tokens in the trial's vocabulary relative to the old one (Figure 4).",
    ),
}
SPEEDS = {
    f"{task}/lines_per_s.length_{group}": more(
        unit="lines/s",
        is_time=True,
        description=f"Speed of {passes} in fp32 on quarter {group} of the dev lines by length, the shortest "
        "first.",
    )
    for task, passes in (("inference", "the forward pass"), ("training", "forward and backward pass"))
    for group in range(1, NUM_LENGTHS + 1)
}
METRICS = {
    **CLASSIFICATION,
    **MEASURES,
    **SPEEDS,
    **EXCHANGE,
    **prefixed("upstream", {**MASKED, **TRAINING}),
    **prefixed("intermediate", {**MASKED, **TRAINING}),
}
"""Metrics by name; an arm without a stage lacks the metrics of that stage."""
