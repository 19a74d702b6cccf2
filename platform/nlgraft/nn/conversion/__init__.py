"""Encoder-decoder checkpoints of transformers, converted into our Transformer and back."""
