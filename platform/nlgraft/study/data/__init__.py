"""A study as immutable, typed values."""
