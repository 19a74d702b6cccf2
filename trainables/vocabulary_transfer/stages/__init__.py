"""The stages of vocabulary transfer; each is imported where it runs."""
