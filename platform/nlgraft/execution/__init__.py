"""Execution of a study on Ray; the only package that imports ray and optuna."""
