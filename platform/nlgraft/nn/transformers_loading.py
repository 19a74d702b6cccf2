"""Loading of released checkpoints through transformers, which is imported only then."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from nlgraft.basics.errors import DataError

MAIN = "main"
"""Branch of a hub name without a revision."""


def position_limit(model: nn.Module) -> int | None:
    """Look up the longest input, special tokens included, that a model of transformers has positions for."""
    settings: Any = model.config
    limit = getattr(settings, "max_position_embeddings", None)
    # RoBERTa counts positions from the padding id on
    is_offset = any(
        getattr(module, "padding_idx", None) is not None and name.endswith("position_embeddings")
        for name, module in model.named_modules()
    )
    return limit if limit is None or not is_offset else limit - settings.pad_token_id - 1


def refuse_missing(checkpoint: str, names: Iterable[str]) -> None:
    """Refuse weights that a model needs and a checkpoint lacks; poolers, which nothing reads, may be missing.

    Raises:
        DataError: Some are missing, by these names.
    """
    if missing := sorted(name for name in names if "pooler." not in name):
        raise DataError(
            f"{checkpoint}: its weights lack {len(missing)} of the model in config.json, such as "
            f"{', '.join(missing[:3])}; fetch the checkpoint again"
        )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and warnings about missing weights; callers report them."""
    from transformers.utils import logging as library

    level, has_bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity(logging.CRITICAL)
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if has_bars:
            library.enable_progress_bar()
