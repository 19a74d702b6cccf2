"""Numbers of things, times and sizes as people read them."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

# Names of files in indexes and manifests: whoever wrote the list may have meant another folder.


def is_inside(name: object) -> bool:
    """Return True if a value is a relative POSIX path that stays below the folder that it is joined to."""
    if not isinstance(name, str) or "\\" in name or "\0" in name:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|(?<=!)\[")
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the order in which a terminal shows those around them."""


def count(
    number: int,
    noun: str,
    plural: str | None = None,
) -> str:
    """Format a number of things: ``1 seed``, ``3 seeds``; with ``plural`` where it is not noun + s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def name_some(
    names: Sequence[str],
    most: int = 5,
    separator: str = ", ",
) -> str:
    """Name the first ones, and say how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


_Key = TypeVar("_Key")
_Member = TypeVar("_Member")


def grouped(pairs: Iterable[tuple[_Key, _Member]]) -> dict[_Key, list[_Member]]:
    """Collect the members of each group from pairs of key and member, in the order of the keys."""
    groups: dict[_Key, list[_Member]] = {}
    for key, member in pairs:
        groups.setdefault(key, []).append(member)
    return groups


def timestamp() -> str:
    """Return the present time, UTC, ISO 8601 to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def duration(seconds: float) -> str:
    """Format a time in the unit that fits: ``40 s``, ``12 min``, ``3.5 h``, ``27 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def hours_of_budget(hours: Mapping[str, Sequence[float]]) -> str:
    """Format hours and their limits by resource, as `Study.budget_hours`: ``3.1 of 40 CPU-hours``."""
    return ", ".join(f"{held:.3g} of {limit:g} {kind}-hours" for kind, (held, limit) in hours.items())


def size(num_bytes: float) -> str:
    """Format a number of bytes: ``0.4 MB``, ``1.2 GB``."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:,.1f} GB"


def inert_markdown(text: str) -> str:
    """Escape what would begin HTML or load an image in Markdown; a text may be escaped twice."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", text)


def visible(text: str) -> str:
    """Escape what would move the cursor, colour a terminal or turn its text around, but for ends of lines."""
    return "".join(
        f"\\u{ord(character):04x}"
        if character in _DIRECTIONS
        or (unicodedata.category(character) in ("Cc", "Zl", "Zp") and character not in "\n\t")
        else character
        for character in text
    )


# Keep credentials out of messages and records.


_HIDDEN = "***"
_PATTERNS = (
    # Up to the last "@", since a password pasted without quoting may hold "/" or "@".
    (re.compile(r"(://[^\s/@:\"'<>]*:)[^\s\"'<>]*@"), rf"\1{_HIDDEN}@"),
    (re.compile(r"(://)[^\s/@:\"'<>]+@"), rf"\1{_HIDDEN}@"),
    # Only in a query: elsewhere "key" and "token" are everyday words of this field.
    (
        re.compile(r"(?i)([?&][^=&\s]*(?:key|token|secret|passw|sig|credential)[^=&\s]*=)[^&\s\"'<>]+"),
        rf"\1{_HIDDEN}",
    ),
    (
        re.compile(r"(?i)\b([\w.-]*(?:password|passwd|secret)[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&)}]+"),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), _HIDDEN),
)


def without_credentials(text: str) -> str:
    """Put ``***`` for passwords, tokens and secret options of URIs, assigned passwords and bearer tokens."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
