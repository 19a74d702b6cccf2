"""Special tokens that an exchange would lose: which there are, and which of them a model's files name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nlgraft.vocab.surgery.token_ids import LISTS, ONE_ID, flat_ids
from nlgraft.vocab.tokenizers.directories import CHAT_TEMPLATE, processing_steps, writes_token
from nlgraft.vocab.tokenizers.legacy import added_token, read_json, read_specials
from nlgraft.vocab.tokenizers.tokens import Kind
from nlgraft.vocab.tokenizers.vocabulary import SUBSTITUTE_ROLES, Vocabulary

Keep = Literal["named", "all", "none"]
"""Lost special tokens to append to the new tokenizer."""
CONFIGURATIONS = ("config.json", "generation_config.json")


@dataclass(frozen=True)
class LostTokens:
    """Special tokens of an old tokenizer that a new one neither has nor replaces in their role.

    Attributes:
        entries: Entries of these tokens in a ``tokenizer.json``, in the order of their ids.
        named: Texts of those that the model's files name: a configuration, the chat template, the tokenizer's
            rule for special tokens around a sentence; without a role, also the tokenizer's lists.
        roles: Role -> text, of those that have one.
    """

    entries: tuple[Mapping[str, Any], ...]
    named: frozenset[str]
    roles: Mapping[str, str]

    def kept(self, keep: Keep) -> list[Mapping[str, Any]]:
        """List the entries to append."""
        if keep == "none":
            return []
        return [entry for entry in self.entries if keep == "all" or entry["content"] in self.named]


def find_lost(old: Vocabulary, new: Vocabulary, path: Path, model: Path | None) -> LostTokens:
    """Find the special tokens that a new vocabulary loses.

    A token whose role the new vocabulary has is not lost, unless the chat template writes it as text.

    Args:
        old: The old vocabulary.
        new: The new one.
        path: File or directory of the old tokenizer.
        model: Directory of the model, if that is another one.
    """
    places = [place for place in (path, model) if place is not None and place.is_dir()]
    file = path / "tokenizer.json" if path.is_dir() else path
    document = read_json(file) if file.suffix == ".json" and file.is_file() else {}
    added = {entry["content"]: entry for entry in document.get("added_tokens") or []}
    template = "\n".join(chat_template(place) for place in places)
    used = {name for place in places for name in _configured(place, old)} | _around(document)
    listed = {name for place in places for name in _listed(place)}
    entries, named, roles = [], set(), {}
    for identity, surface in enumerate(old.surfaces):
        if not surface or surface in new.ids_by_surface:
            continue
        # A tokenizer.json lists its special tokens; other forms have them by their usual names.
        is_special = old.token(identity).kind is Kind.SPECIAL and (surface in added or not added)
        is_written = writes_token(template, surface)
        if not is_special and not (is_written and surface in added):
            continue
        own = [role for role, place in old.roles.items() if place == identity]
        if not is_written and any(_has_role(new, role) for role in own):
            continue
        entries.append(added.get(surface) or added_token(identity, surface))
        roles |= dict.fromkeys(own, surface)
        # A list names every role's token, also an unknown one that a vocabulary with bytes never yields.
        if is_written or surface in used or (not own and surface in listed):
            named.add(surface)
    return LostTokens(tuple(entries), frozenset(named), roles)


def _has_role(vocabulary: Vocabulary, role: str) -> bool:
    return not {role, SUBSTITUTE_ROLES.get(role, role)}.isdisjoint(vocabulary.roles)


def chat_template(directory: Path) -> str:
    """Read the chat templates of a tokenizer; "" when it has none."""
    file = directory / CHAT_TEMPLATE
    if file.is_file():
        return file.read_text("utf-8")
    found = read_specials(directory).get("chat_template") or ""
    return found if isinstance(found, str) else "\n".join(each["template"] for each in found)


def _configured(directory: Path, old: Vocabulary) -> Iterator[str]:
    """Yield the tokens that a model's configurations name by id."""
    for name in CONFIGURATIONS:
        if (directory / name).is_file():
            ids = _ids(read_json(directory / name))
            yield from (old.surfaces[i] for i in ids if 0 <= i < len(old))


def _listed(directory: Path) -> Iterator[str]:
    """Yield the tokens that a tokenizer's settings name by text."""
    specials = read_specials(directory)
    yield from (f"<extra_id_{number}>" for number in range(specials.get("extra_ids") or 0))  # T5's
    for name, value in specials.items():
        if name.endswith("_token"):
            yield from _texts([value])
        elif name in ("additional_special_tokens", "extra_special_tokens") and value:
            yield from _texts([*value.values()] if isinstance(value, Mapping) else value)


def _ids(settings: Mapping[str, Any]) -> Iterator[int]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _ids(value)
        elif value is not None and (name.endswith(ONE_ID) or name in LISTS):
            yield from (i for i in flat_ids(value) if isinstance(i, int))


def _texts(tokens: Sequence[Any]) -> Iterator[str]:
    texts = (token["content"] if isinstance(token, Mapping) else token for token in tokens)
    yield from (text for text in texts if isinstance(text, str))


def _around(document: Mapping[str, Any]) -> set[str]:
    """Return the tokens that a ``tokenizer.json`` puts around a sentence."""
    steps = processing_steps(document.get("post_processor"))
    return {text for step in steps for text in step.get("special_tokens") or {}}
