"""The meaning of a study's trials: statistics, comparisons, verdicts on claims, figures, report."""
