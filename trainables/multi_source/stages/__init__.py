"""The stages of multi-source generation; each is imported where it runs."""
