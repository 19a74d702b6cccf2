"""Estimates: differences, their p-values and noise as pure functions of scores."""
