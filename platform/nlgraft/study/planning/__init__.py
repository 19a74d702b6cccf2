"""From a study to a plan: cells, trials, stages, cost."""
