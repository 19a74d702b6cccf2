"""Append the special tokens of one tokenizer to another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json


def append_tokens(
    directory: Path, entries: Sequence[Mapping[str, Any]], roles: Mapping[str, str] | None = None
) -> None:
    """Append tokens to a tokenizer, in place; all of its ids stay.

    Args:
        directory: A tokenizer that ``transformers`` loads.
        entries: Entries of ``added_tokens`` in a ``tokenizer.json``; they get the next ids, in this order.
        roles: Role -> text of a token that takes this role.

    Raises:
        DataError: It has no ``tokenizer.json`` and none can be made.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        _convert(directory)
    document = read_json(file)
    vocab, added = document["model"]["vocab"], document.get("added_tokens") or []
    used = vocab.values() if isinstance(vocab, Mapping) else [len(vocab) - 1]
    first = max([*used, *(entry["id"] for entry in added)]) + 1
    made = [{**entry, "id": first + number} for number, entry in enumerate(entries)]
    if isinstance(vocab, dict):
        # Tokens behind a vocabulary with gaps would get other ids, unless they stand in it themselves.
        vocab |= {entry["content"]: entry["id"] for entry in [*added, *made]}
    document["added_tokens"] = [*added, *made]
    file.write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    _name_tokens(directory, [entry["content"] for entry in made if entry["special"]], roles or {})


def _convert(directory: Path) -> None:
    import transformers

    try:
        transformers.AutoTokenizer.from_pretrained(directory).save_pretrained(directory)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{directory}: transformers cannot read this tokenizer ({error})") from error
    if not (directory / "tokenizer.json").is_file():
        raise DataError(
            "the new tokenizer has no form of tokenizer.json, so no special token can be appended to it; "
            "add the tokens to it yourself, or give --keep-special none"
        )


def _name_tokens(directory: Path, specials: Sequence[str], roles: Mapping[str, str]) -> None:
    """Name special tokens and roles in ``tokenizer_config.json``."""
    file = directory / "tokenizer_config.json"
    config = read_json(file) if file.is_file() else {}
    config |= {f"{role}_token": token for role, token in roles.items()}
    key = "additional_special_tokens" if "additional_special_tokens" in config else "extra_special_tokens"
    if isinstance(named := config.get(key) or [], list):
        config[key] = [*named, *(token for token in specials if token not in roles.values())]
    file.write_text(json.dumps(config, ensure_ascii=False, indent=1), "utf-8")
