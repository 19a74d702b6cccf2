"""Vocabularies and how one is exchanged for another: canonical tokens, similar tokens, plans, models."""
