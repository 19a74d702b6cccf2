"""From the trials of a study to its statistics, comparisons, verdicts on claims, figures and report."""
