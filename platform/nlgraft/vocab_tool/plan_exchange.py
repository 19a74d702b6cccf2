"""``nlgraft vocab plan``: from the names of two tokenizers to a plan and its report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json, read_lines, refuse_used, written_at_once
from nlgraft.vocab.methods.building import build_plan, donor_rows
from nlgraft.vocab.methods.interface import Method, PlanChoices, PlanMaterial, TokenVectors
from nlgraft.vocab.methods.registry import find_method
from nlgraft.vocab.methods.similar import DEFAULT_CAP
from nlgraft.vocab.surgery.token_ids import LISTS, ONE_ID, flat_ids
from nlgraft.vocab.tokenizers.encoding import text_encoder
from nlgraft.vocab.tokenizers.extension import append_tokens
from nlgraft.vocab.tokenizers.loading import (
    CHAT_TEMPLATE,
    added_token,
    find_tokenizer,
    load_vocabulary,
    processing_steps,
    read_specials,
    save_tokenizer,
    writes_token,
)
from nlgraft.vocab.tokenizers.vocabulary import SUBSTITUTE_ROLES, Kind, Vocabulary
from nlgraft.vocab.transfer_plan import Array, TransferPlan, norm_report
from nlgraft.vocab_tool.plan_report import PlanReport, SpecialTokens, report_plan

# Special tokens that an exchange would lose: which there are, and which of them a model's files name.


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


def find_lost(
    old: Vocabulary,
    new: Vocabulary,
    path: Path,
    model: Path | None,
) -> LostTokens:
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
        token_roles = [role for role, place in old.roles.items() if place == identity]
        substitutes = {SUBSTITUTE_ROLES.get(role, role) for role in token_roles}
        if not is_written and not substitutes.union(token_roles).isdisjoint(new.roles):
            continue
        entries.append(added.get(surface) or added_token(identity, surface))
        roles |= dict.fromkeys(token_roles, surface)
        # A list names every role's token, also an unknown one that a vocabulary with bytes never yields.
        if is_written or surface in used or (not token_roles and surface in listed):
            named.add(surface)
    return LostTokens(tuple(entries), frozenset(named), roles)


def chat_template(directory: Path) -> str:
    """Read the chat templates of a tokenizer; "" when it has none."""
    file = directory / CHAT_TEMPLATE
    if file.is_file():
        return file.read_text("utf-8")
    templates = read_specials(directory).get("chat_template") or ""
    if isinstance(templates, str):
        return templates
    return "\n".join(each["template"] for each in templates)


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


MAX_LINE_CHARS = 100_000
"""Longer lines of text are truncated."""
_WIDTH = 100
"""Width of token vectors that only tell which tokens are alike."""


@dataclass(frozen=True)
class PlanRequest:
    """Settings of a plan.

    Attributes:
        old: The model's tokenizer: file, directory or hub name.
        new: The new tokenizer, likewise.
        method: Name of the method.
        cap: Size limit of the set of similar tokens; None for no limit.
        seed: Seed of all random draws.
        text: Files of text, for lengths in the report and token vectors.
        model: Checkpoint, for methods that learn from its rows, and for norms in the report.
        donor: Checkpoint that has the new tokens, for methods that compare tokens in its space.
        epochs: Passes over the text when learning them.
        min_count: Tokens that occur less often have no vector.
        keep_special: Lost special tokens to append to the new tokenizer: those that the model's files name,
            all, or none.
    """

    old: str
    new: str
    method: str = "avg"
    cap: int | None = DEFAULT_CAP
    seed: int = 0
    text: Sequence[Path] = ()
    model: str | None = None
    donor: str | None = None
    epochs: int = 5
    min_count: int = 1
    keep_special: Keep = "named"


@dataclass(frozen=True)
class Planned:
    """A plan that was made.

    Attributes:
        plan: The plan.
        report: The plan in numbers.
        path: Directory it was saved to; None when it was not saved.
    """

    plan: TransferPlan
    report: PlanReport
    path: Path | None

    def to_json(self) -> dict[str, Any]:
        """Convert the report and the path to JSON values."""
        return self.report.to_json() | {"plan": None if self.path is None else str(self.path)}


def plan_transfer(request: PlanRequest, out: Path | None = None) -> Planned:
    """Make a plan and report what it would do.

    ``out`` is the directory for the plan and the new tokenizer; None only reports.

    Raises:
        DataError: An input is missing, unreadable or contradictory, or ``out`` is in use.
    """
    if out is not None:
        refuse_used(out)
    method, lines = find_method(request.method), read_text(request.text)
    _check_request(request, method, bool(lines))
    with tempfile.TemporaryDirectory() as scratch:
        old_path, old, new_path, new, specials = _tokenizers(request, Path(scratch))
        rows = None if request.model is None else _embedding_rows(request.model)
        encoded = (text_encoder(old_path, old)(lines), text_encoder(new_path, new)(lines)) if lines else None
        learned = [
            _vectors(request, method, ids, len(vocabulary), rows) if method.vectors else None
            for ids, vocabulary in zip(encoded or ((), ()), (old, new), strict=True)
        ]
        donor = None
        if request.donor is not None:
            tokens = load_vocabulary(find_tokenizer(request.donor))
            donor = donor_rows(new, tokens, _embedding_rows(request.donor))
        material = PlanMaterial(
            old_rows=rows,
            old_vectors=learned[0] if method.needs_old_vectors else None,
            new_vectors=learned[1],
            donor=donor,
        )
        choices = PlanChoices(cap=request.cap, seed=request.seed)
        plan = build_plan(old, new, method, choices, material)
        norms = None if rows is None else norm_report(plan, rows, plan.apply(rows))
        report = report_plan(plan, text=lines, encoded=encoded, norms=norms, specials=specials)
        if out is not None:
            with written_at_once(out) as directory:
                plan.save(directory)
                save_tokenizer(new_path, new, directory / TOKENIZER_DIRECTORY)
    return Planned(plan, report, out)


def _tokenizers(
    request: PlanRequest, scratch: Path
) -> tuple[Path, Vocabulary, Path, Vocabulary, SpecialTokens]:
    """Read the old and the new tokenizer, the latter with lost tokens appended, in ``scratch``."""
    old_path, new_path = find_tokenizer(request.old), find_tokenizer(request.new)
    old, new = load_vocabulary(old_path), load_vocabulary(new_path)
    lost_strings = find_lost(old, new, old_path, None if request.model is None else Path(request.model))
    kept = lost_strings.kept(request.keep_special)
    texts = [entry["content"] for entry in kept]
    if kept:
        save_tokenizer(new_path, new, scratch)
        append_tokens(
            scratch, kept, {role: text for role, text in lost_strings.roles.items() if text in texts}
        )
        new_path, new = scratch, replace(load_vocabulary(scratch), name=new.name)
    dropped = [text for entry in lost_strings.entries if (text := entry["content"]) not in texts]
    return old_path, old, new_path, new, SpecialTokens(tuple(texts), tuple(dropped))


def _check_request(request: PlanRequest, method: Method, has_text: bool) -> None:
    has_vectors = method.vectors is not None
    is_read = {
        "cap": method.has_similar_tokens,
        "epochs": has_vectors,
        "min_count": has_vectors,
        "donor": method.needs_donor,
    }
    unread = []
    for option in fields(request):
        is_changed = getattr(request, option.name) != option.default
        if is_changed and not is_read.get(option.name, True):
            unread.append(f"--{option.name.replace('_', '-')}")
    if unread:
        raise DataError(f"method '{method.name}' does not read {', '.join(sorted(unread))}; leave that out")
    if method.vectors and not has_text:
        raise DataError(f"method '{method.name}' needs text to learn from; give --text FILE")
    if method.needs_donor and request.donor is None:
        raise DataError(
            f"method '{method.name}' needs a model with the new tokens; give --donor MODEL, or --like MODEL"
        )
    # Vectors that become rows must have the model's width, which only the model tells.
    if (method.needs_old_rows or method.has_vector_rows) and request.model is None:
        raise DataError(f"method '{method.name}' needs the model's own rows or their width; give --model")


def read_text(files: Sequence[Path]) -> list[str]:
    """Read lines of plain or compressed text, blank ones left out.

    Raises:
        DataError: A file is missing, blank, not UTF-8 or broken.
    """
    lines: list[str] = []
    for path in files:
        file_lines = [line for line in read_lines(str(path), MAX_LINE_CHARS).lines if line.strip()]
        if not file_lines:
            raise DataError(f"{path}: contains no text")
        lines += file_lines
    return lines


def _embedding_rows(model: str) -> Array:
    from nlgraft.vocab_tool.checkpoints import embedding_rows  # torch takes seconds to import

    return embedding_rows(model)


def _vectors(
    request: PlanRequest,
    method: Method,
    ids: Sequence[Sequence[int]],
    size: int,
    rows: Array | None,
) -> TokenVectors:
    from nlgraft.vocab.methods.token_vectors import VectorOptions, learn_vectors

    width = rows.shape[1] if method.has_vector_rows and rows is not None else _WIDTH
    assert method.vectors is not None, "called only for methods with vectors"
    options = VectorOptions(
        kind=method.vectors, width=width, epochs=request.epochs, min_count=request.min_count
    )
    return learn_vectors(ids, size, options, request.seed)


# Output directories of the commands.


TOKENIZER_DIRECTORY = "tokenizer"
"""Place of the new tokenizer in a plan's directory."""
EXCHANGE_RECORD = "vocabulary_exchange.json"
"""What an exchange found in the configurations, in a checkpoint's directory: settings whose tokens the new
vocabulary lacks, and tokens in a role that the old tokenizer gave to others already."""
