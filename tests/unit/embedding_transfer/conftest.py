"""Requests for similar tokens, by requester."""

from __future__ import annotations

from typing import Any

import pytest

from nlgraft.vocab.methods import interface
from nlgraft.vocab.methods.similar import similar_tokens
from trainables.embedding_transfer import new_tokens


@pytest.fixture
def similar_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Options of every search for similar tokens, by the asking side: ``training`` or ``exchange``."""
    requested: dict[str, list[dict[str, Any]]] = {}
    for name, module in (("training", new_tokens), ("exchange", interface)):

        def spied(*arguments: Any, asker: str = name, **options: Any) -> Any:
            requested.setdefault(asker, []).append(options)
            return similar_tokens(*arguments, **options)

        monkeypatch.setattr(module, "similar_tokens", spied)
    return requested
