"""The stages of embedding transfer; each is imported where it runs."""
