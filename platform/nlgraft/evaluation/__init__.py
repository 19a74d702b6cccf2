"""What a text or a decision is worth: metrics with sufficient statistics, calibration, speed, translation."""
