"""Vocabularies and their exchange: canonical tokens, similar tokens, transfer plans, models."""
