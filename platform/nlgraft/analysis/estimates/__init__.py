"""Differences and how certain they are: pure functions of scores."""
