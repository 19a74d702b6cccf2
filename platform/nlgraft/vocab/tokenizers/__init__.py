"""Tokenizers of every kind as canonical vocabularies."""
