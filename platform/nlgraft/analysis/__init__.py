"""What the trials of a study mean: statistics, comparisons, verdicts on claims, figures, report."""
