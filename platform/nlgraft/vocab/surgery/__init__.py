"""Vocabulary exchange in checkpoints, and its verification."""
