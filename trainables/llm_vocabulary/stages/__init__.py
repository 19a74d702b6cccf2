"""The stages of another vocabulary for a causal language model; each is imported where it runs."""
