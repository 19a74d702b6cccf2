"""Who asks for similar tokens, and how."""

from __future__ import annotations

from typing import Any

import pytest

from nlgraft.vocab import producers
from nlgraft.vocab.similar import similar_tokens
from trainables.embedding_transfer import new_tokens


@pytest.fixture
def similar_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Options of every search for similar tokens, by the asking side: ``training`` or ``exchange``."""
    asked: dict[str, list[dict[str, Any]]] = {}
    for name, module in (("training", new_tokens), ("exchange", producers)):

        def spied(*arguments: Any, asker: str = name, **options: Any) -> Any:
            asked.setdefault(asker, []).append(options)
            return similar_tokens(*arguments, **options)

        monkeypatch.setattr(module, "similar_tokens", spied)
    return asked
