"""Encoder-decoder checkpoints of transformers, read into our Transformer and written back."""
