"""The stages of PrLM fusion; each is imported where it runs."""
