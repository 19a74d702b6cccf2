"""The corpora of a config as MLflow dataset inputs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import DataError
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.text.corpus_config import SPLITS, ConlangConfig, CorpusConfig, further_tests
from nlgraft.text.corpus_digest import digest
from nlgraft.tracking.entries import TrackedDataset

_log = logging.getLogger("nlgraft.tracking")


def tracked_datasets(data: Any) -> tuple[TrackedDataset, ...]:
    """Find the corpora in the ``data`` of a config.

    Args:
        data: JSON values. A corpus is a mapping with a key ``corpus`` that the text package knows.

    Returns:
        One dataset per corpus and split; its digest covers everything that determines the text.
    """
    return tuple(dataset for path, corpus in _corpora(data, "") for dataset in _splits(path, corpus))


def _corpora(data: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(data, Mapping):
        return
    if "corpus" in data:
        yield path, data
        return
    for key, inner in data.items():
        yield from _corpora(inner, f"{path}{key}/")


def _splits(path: str, corpus: Mapping[str, Any]) -> list[TrackedDataset]:
    try:
        config: Any = TypeAdapter(CorpusConfig).validate_python(corpus)
        parts = digest(config)
    except (ValidationError, DataError, OSError) as error:
        _log.debug("%scorpus is not logged to MLflow: %s", path, error)
        return []
    written = config.model_dump(mode="json")
    splits = (*SPLITS, *further_tests(written))
    own = {split: parts.pop(split, None) for split in splits}
    return [
        TrackedDataset(
            name=f"{path}{config.corpus}/{split}",
            digest=fingerprint([parts, own[split], split]),
            source=json.dumps({**written, "split": split}, sort_keys=True),
            source_type=config.corpus,
            context=split,
            profile={"segments": getattr(config, split)} if isinstance(config, ConlangConfig) else {},
        )
        for split in splits
    ]
