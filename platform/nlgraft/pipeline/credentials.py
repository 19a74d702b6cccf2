"""Keep credentials out of messages and records."""

from __future__ import annotations

import re

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
