"""Metrics of text and decisions with sufficient statistics, calibration, speed, translation."""
