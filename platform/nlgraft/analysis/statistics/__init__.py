"""Intervals, tests, effects and claims."""
