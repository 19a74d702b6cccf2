"""Embedding transfer (Liu et al. 2021, Bridging Subword Gaps)."""
