"""The published systems; each is imported by its own path and none by another."""
