"""The overrides of a study, which make it a variant with a name of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from nlgraft.pipeline.credentials import without_credentials
from nlgraft.pipeline.fingerprint import fingerprint

NOT_IN_VARIANT = frozenset({"name", "description", "resources", "budget", "storage", "tracking"})
"""Fields whose overrides change neither what is computed nor what is reported."""

_DIGEST_CHARS = 8


@dataclass(frozen=True)
class Overrides:
    """The overrides with which a study was read, as far as they change its results.

    Attributes:
        scales: Names of the scales, in the order given.
        values: Values by path in the study file.
    """

    scales: tuple[str, ...] = ()
    values: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The overrides as the command line takes them, without credentials."""
        pairs = [
            f"{path.removeprefix('base.')}={value if isinstance(value, str) else json.dumps(value)}"
            for path, value in self.values.items()
        ]
        return [f"@{scale}" for scale in self.scales] + [without_credentials(pair) for pair in pairs]

    def variant_of(self, name: str) -> str:
        """Name the variant: study, scales and a digest of the values, e.g. ``demo@tiny-1f0c6a2e``."""
        parts = ["@".join(self.scales)] if self.scales else []
        parts += [fingerprint(dict(self.values))[:_DIGEST_CHARS]] if self.values else []
        return f"{name}@{'-'.join(parts)}" if parts else name
