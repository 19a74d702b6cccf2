"""What a study will run: cells, trials, stages, cost."""
