"""Initialisation methods for new rows."""
