"""Translation, metrics of text and of decisions with their sufficient statistics, calibration, speed."""
