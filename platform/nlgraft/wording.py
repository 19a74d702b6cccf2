"""Numbers of things, times and sizes as people read them."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Format a number of things: ``1 seed``, ``3 seeds``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a time in the unit that fits: ``40 s``, ``12 min``, ``3.5 h``, ``27 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def size(num_bytes: float) -> str:
    """Format a number of bytes: ``0.4 MB``, ``1.2 GB``."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.1f} GB"
