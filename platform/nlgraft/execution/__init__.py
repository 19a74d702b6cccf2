"""Where a study runs: the only package that imports ray and optuna."""
