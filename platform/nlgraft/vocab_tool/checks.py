"""Checks of checkpoints: of one whose vocabulary was exchanged (verify), and of any (doctor).

They judge the model that ``transformers`` makes of it. The strongest check is the permutation test: with the
ids of the vocabulary reversed, hidden states and logits must be the same. It detects any wrong offset, id,
bias, tie or configuration.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from nlgraft.basics.errors import DataError, PaddingError
from nlgraft.basics.wording import name_some
from nlgraft.text.files import read_json
from nlgraft.vocab.surgery.exchange import (
    TensorRows,
    exchange_vocabulary,
    find_vocabulary_tensors,
    input_table,
    is_encoder_decoder,
)
from nlgraft.vocab.surgery.token_ids import flat_ids, id_settings, vocabulary_parts
from nlgraft.vocab.tokenizers.loading import DECODER_DIRECTORY, find_tokenizer, load_vocabulary
from nlgraft.vocab.tokenizers.vocabulary import Kind, Vocabulary
from nlgraft.vocab.transfer_plan import CHUNK_ROWS, Provenance, Rows, TransferPlan, row_norms
from nlgraft.vocab_tool.checkpoints import SinglePrecision, StoredCheckpoint, in_safetensors
from nlgraft.vocab_tool.plan_exchange import EXCHANGE_RECORD

PERMUTATION_TOLERANCE = 1e-4
"""Largest difference of logits that reordered single-precision additions explain, relative to their size."""
NUM_TOKENS = 12
SENTENCE = "a b"
PADDING_TOLERANCE = 1e-5
"""Largest difference of outputs that another width of a batch explains, relative to their size."""


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: Name of the check.
        is_good: True if it passed.
        detail: Findings in words.
    """

    name: str
    is_good: bool
    detail: str


def verify_checkpoint(directory: str | Path) -> list[Check]:
    """Run all checks on a checkpoint whose vocabulary was exchanged, with its tokenizer if there is one.

    Raises:
        DataError: The checkpoint cannot be loaded at all.
    """
    file = Path(directory) / EXCHANGE_RECORD
    record = read_json(file) if file.is_file() else {"lost": {}, "disagreeing": {}}

    def more(model: Any) -> Iterator[Check]:
        yield check_permutation(model)
        if hasattr(model, "generate") and getattr(model, "can_generate", lambda: False)():
            yield _check_generation(model)
        yield _check_named_ids(model, record["lost"])

    return _examine(directory, _check_tokenizer, more, record["disagreeing"])


def _examine(
    directory: str | Path,
    check_side: Callable[[Any, Vocabulary, Path, str, str], Iterable[Check]],
    more: Callable[[Any], Iterable[Check]],
    disagreeing: Mapping[str, Sequence[str]] | None = None,
) -> list[Check]:
    """Run the checks of every checkpoint, those of each side's tokenizer, and more."""
    with in_safetensors(str(directory)) as checkpoint:
        model = checkpoint.model
        checks = [check_weights(checkpoint)]
        if not checks[0].is_good:  # the others would judge values of a new model
            return checks
        num_ids = {side: _num_rows(model, side) for side in ("encoder", "decoder")}
        places = tokenizer_places(directory)
        for side, place, name in places:
            try:
                vocabulary = load_vocabulary(place)
            except DataError as error:
                checks.append(Check("tokenizer", False, str(error)))
                continue
            checks += check_side(model, vocabulary, place, side, name)
            if side == "decoder":
                checks.append(check_special_ids(model, vocabulary, disagreeing))
            # rows beyond the vocabulary belong to no token
            num_ids |= {each: len(vocabulary) for each in (num_ids if not name else [side])}
        return [*checks, check_rows(model, num_ids), check_ties(model, len(places) == 2), *more(model)]


def _check_named_ids(model: Any, emptied: Mapping[str, Any]) -> Check:
    """Check that the settings which an exchange is recorded to have emptied have ids again."""
    configs = [*vocabulary_parts(model.config), getattr(model, "generation_config", None)]
    gone = [
        f"{name}: {', '.join(entry['tokens'])}"
        for name, entry in emptied.items()
        if not any(
            len(flat_ids(value)) >= entry["num_ids"]
            for config in configs
            if (value := getattr(config, name, None)) is not None
        )
    ]
    detail = (
        f"without a token since the exchange: {'; '.join(gone)}; plan with --keep-special all, or set them"
    )
    return Check("named ids have tokens", not gone, detail if gone else "none was lost in an exchange")


def check_weights(checkpoint: StoredCheckpoint) -> Check:
    """Name the class of the model and what its files lack; vocabulary tables must not be missing."""
    name, missing = type(checkpoint.model).__name__, checkpoint.missing
    if not missing:
        return Check("weights are stored", True, name)
    tables = find_vocabulary_tensors(checkpoint.model).all
    detail = f"{name}; no weights for {name_some(missing, 1)}"
    return Check("weights are stored", tables.isdisjoint(missing), detail)


def tokenizer_places(directory: str | Path) -> list[tuple[str, Path, str]]:
    """List side, place and name of the tokenizer, or of both where encoder and decoder differ."""
    try:
        root = find_tokenizer(directory)
    except DataError:
        root = Path(directory)
    decoder_directory = root / DECODER_DIRECTORY
    if decoder_directory.is_dir():
        return [("encoder", root, "encoder: "), ("decoder", decoder_directory, "decoder: ")]
    return [("decoder", root, "")]


def _check_tokenizer(
    model: Any, vocabulary: Vocabulary, place: Path, side: str, name: str
) -> Iterator[Check]:
    num_rows = _num_rows(model, side)
    beyond = [surface for surface in vocabulary.surfaces[num_rows:] if surface]
    detail = f"{len(vocabulary)} ids, {num_rows} rows"
    detail = f"{detail}; first id without: {beyond[0]!r}" if beyond else detail
    yield Check(f"{name}ids have rows", not beyond, detail)
    yield from _check_encoding(model, place, num_rows, name)


def _check_encoding(
    model: Any,
    place: Path,
    num_rows: int,
    name: str,
) -> Iterator[Check]:
    """Encode a sentence as ``transformers`` does, alone and in a padded batch."""
    import transformers

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about optional packages
            tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        ids = tokenizer(SENTENCE)["input_ids"]
    except Exception as error:  # `tokenizers` raises no other
        yield Check(f"{name}tokenizer encodes text", False, f"transformers cannot load it ({error})")
        return
    is_good = bool(ids) and max(ids) < num_rows
    yield Check(f"{name}tokenizer encodes text", is_good, f"{type(tokenizer).__name__}, ids {ids}")
    if is_good and not name.startswith("decoder"):
        yield _check_padded_batch(model, tokenizer, ids, name)


def _check_padded_batch(
    model: Any,
    tokenizer: Any,
    ids: list[int],
    name: str,
) -> Check:
    """Pad a sentence to the length of a longer one: the model's output for it must not change."""
    title = f"{name}pads a batch"
    if tokenizer.pad_token_id is None:
        if model.can_generate() and not is_encoder_decoder(model):
            return Check(title, True, "no padding token, as usual for decoders; set one before batching")
        return Check(
            title, False, "the tokenizer has no padding token; add one to the new tokenizer and plan again"
        )
    if tokenizer.pad_token_id >= _num_rows(model, "encoder"):
        return Check(title, False, f"padding id {tokenizer.pad_token_id} has no row")
    # The first positions of the padded sentence can then be compared with the unpadded one.
    tokenizer.padding_side = "right"
    batch = tokenizer.pad({"input_ids": [ids, [*ids, *ids]]}, return_tensors="pt")
    alone = tokenizer.pad({"input_ids": [ids]}, return_tensors="pt")
    padded, unpadded = (
        _forward(model, inputs["input_ids"], inputs["attention_mask"])[0, : len(ids)]
        for inputs in (batch, alone)
    )
    difference = float((padded - unpadded).abs().max())
    # Rounding grows with the size of the outputs.
    scale = max(1.0, float(unpadded.abs().max()))
    return Check(
        title, difference <= PADDING_TOLERANCE * scale, f"largest difference {difference:.2g} under padding"
    )


def _forward(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
) -> torch.Tensor:
    """Logits or last hidden states; the decoder of an encoder-decoder reads fixed tokens."""
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if is_encoder_decoder(model):
        tokens = torch.arange(NUM_TOKENS).remainder(_num_rows(model, "decoder"))
        inputs["decoder_input_ids"] = tokens.expand(len(input_ids), NUM_TOKENS)
    with torch.no_grad(), SinglePrecision():
        return model(**inputs)[0]


def disagreeing_ids(model: Any, roles: Mapping[str, int]) -> Iterator[tuple[str, list[int], str]]:
    """Yield role, ids and configuration where a configuration gives a role to other ids than a tokenizer.

    Args:
        model: The model.
        roles: Role -> id of the tokenizer.
    """
    for config in (model.config, getattr(model, "generation_config", None)):
        for role, identity in roles.items():
            configured = getattr(config, f"{role}_token_id", None)
            if configured is not None and identity not in (ids := flat_ids(configured)):
                yield role, ids, type(config).__name__


def check_special_ids(
    model: Any,
    vocabulary: Vocabulary,
    before: Mapping[str, Sequence[str]] | None = None,
) -> Check:
    """Compare the special ids of the configurations with those of the tokenizer.

    Args:
        model: The model.
        vocabulary: Its tokenizer's.
        before: Role -> tokens that it had in the configuration, but not in the tokenizer, when the vocabulary
            was exchanged: an exchange keeps such disagreements.
    """
    wrong, old = [], []
    for role, ids, name in disagreeing_ids(model, vocabulary.roles):
        surfaces = (before or {}).get(role, ())
        recorded_ids = {*map(vocabulary.ids_by_surface.get, surfaces)}
        config_ids = ", ".join(map(str, ids)) or "none"
        message = f"{role}: {config_ids} in {name}, {vocabulary.roles[role]} in the tokenizer"
        (old if ids and recorded_ids.issuperset(ids) else wrong).append(message)
    detail = "; ".join(wrong) or "with the tokenizer"
    detail += f"; not before the exchange either: {'; '.join(old)}" if old else ""
    return Check("special ids agree", not wrong, detail)


def _num_rows(model: Any, side: str = "decoder") -> int:
    return int(input_table(model, side).shape[0])


def check_rows(model: Any, num_ids: Mapping[str, int]) -> Check:
    """Look for rows that are not finite, and zero rows but for padding, among the ids of each side."""
    tensors = find_vocabulary_tensors(model)
    faults = []
    for name, tensor in model.named_parameters():
        if name not in tensors.encoder | tensors.decoder | tensors.output:
            continue
        rows = tensor.detach()[: num_ids["encoder" if name in tensors.encoder else "decoder"]]
        num_bad = int((~torch.isfinite(rows).all(dim=1)).sum())
        num_zero = int((rows == 0).all(dim=1).sum())
        if num_bad:
            faults.append(f"{name}: {num_bad} rows with NaN or infinity")
        if num_zero > 1:  # padding may be zero
            faults.append(f"{name}: {num_zero} rows are zero")
    return Check("rows are sound", not faults, "; ".join(faults) or "finite, none zero but padding")


def check_ties(model: Any, has_two_vocabularies: bool) -> Check:
    """Check that tables are shared where the configuration says so."""
    encoder_names = find_vocabulary_tensors(model).encoder if has_two_vocabularies else frozenset[str]()
    names = dict(model.named_parameters(remove_duplicate=False)) | dict(
        model.named_buffers(remove_duplicate=False)
    )
    expected = model.get_expanded_tied_weights_keys(all_submodels=True)
    broken = [
        f"{name} and {tied_name}"
        for name, tied_name in expected.items()
        if name in names
        and tied_name in names
        and names[name] is not names[tied_name]
        # T5's configuration ties the sides whatever they hold; two vocabularies cannot be one table
        and (name in encoder_names) == (tied_name in encoder_names)
    ]
    return Check("ties hold", not broken, "; ".join(broken) or f"{len(expected)} by the configuration")


def check_permutation(model: Any) -> Check:
    """Reverse the ids of the vocabulary and compare logits or hidden states.

    Where positions are computed from one padding id, that id stays in place.
    """
    try:
        other, ids = _reversed(model, None)
    except PaddingError:
        other, ids = _reversed(model, model.config.pad_token_id)
    before, after = _outputs(model, None), _outputs(other, ids)
    if before.shape[-1] == _num_rows(model) and model.get_output_embeddings() is not None:
        after = after[..., ids["decoder"]]
    difference = float((before - after).abs().max())
    scale = max(1.0, float(before.abs().max()))
    is_good = difference <= PERMUTATION_TOLERANCE * scale
    return Check(
        "permutation test", is_good, f"largest difference {difference:.2g} of values up to {scale:.3g}"
    )


def _reversed(model: Any, kept: int | None) -> tuple[Any, dict[str, torch.Tensor]]:
    """Reverse the ids of a model, and return the new place of each id on either side."""
    sizes = {side: _num_rows(model, side) for side in ("encoder", "decoder")}
    plans = {side: reversed_plan(size, kept) for side, size in sizes.items()}
    orders = {side: np.argsort(plan.matrix.indices) for side, plan in plans.items()}
    ids = {side: torch.from_numpy(order) for side, order in orders.items()}
    if sizes["encoder"] == sizes["decoder"]:
        return exchange_vocabulary(model, plans["decoder"]), ids
    encoder_side = exchange_vocabulary(model, plans["encoder"], sides="encoder")
    # Two vocabularies of different sizes need a plan each.
    return exchange_vocabulary(encoder_side, plans["decoder"], sides="decoder"), ids


def _outputs(model: Any, ids: dict[str, torch.Tensor] | None) -> torch.Tensor:
    """Compute logits, or the last hidden states of a model without a head, on fixed tokens."""
    generator = torch.Generator().manual_seed(0)

    def tokens(side: str) -> torch.Tensor:
        drawn = torch.randint(0, _num_rows(model, side), (2, NUM_TOKENS), generator=generator)
        return drawn if ids is None else ids[side][drawn]

    if is_encoder_decoder(model):
        inputs = {"input_ids": tokens("encoder"), "decoder_input_ids": tokens("decoder")}
    else:
        inputs = {"input_ids": tokens("decoder")}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad(), SinglePrecision():
        return model(**inputs)[0]


def reversed_plan(size: int, kept: int | None = None) -> TransferPlan:
    """Make the plan that reverses ``size`` ids, those around ``kept`` if an id stays in place."""
    names = tuple(str(i) for i in range(size))
    order = np.arange(size)[::-1].copy()
    if kept is not None:
        others = np.delete(np.arange(size), kept)
        order[others], order[kept] = others[::-1], kept
    entries = np.ones(size, dtype=np.float32), order, np.arange(size + 1)
    matrix = csr_matrix(entries, shape=(size, size))
    return TransferPlan(
        matrix=matrix,
        provenance=np.full(size, int(Provenance.COPY), dtype=np.int8),
        reasons=("reversed",) * size,
        old_surfaces=names,
        new_surfaces=tuple(names[i] for i in order),
        is_real=np.ones(size, dtype=bool),
        method="reversed",
    )


def _check_generation(model: Any) -> Check:
    ids = torch.arange(1, 5).remainder(_num_rows(model, "encoder"))[None]
    unset = [
        name
        for part in vocabulary_parts(model.config)
        for name, value in id_settings(part).items()
        if name.endswith("_token_id") and max(flat_ids(value), default=0) >= _num_rows(model)
    ]
    if unset:
        return Check("generates", False, f"ids beyond the vocabulary: {', '.join(unset)}")
    try:
        with torch.no_grad(), SinglePrecision():
            generated = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False
            )
    except (ValueError, IndexError, RuntimeError) as error:
        return Check("generates", False, str(error))
    return Check("generates", True, f"{generated.shape[1]} tokens")


# Ill vocabularies: rows that were never trained, tokens that no text yields.


SMALL_NORM = 0.3
"""Rows of text tokens whose norm is below this share of the median have hardly been trained."""


def examine_checkpoint(directory: str | Path) -> list[Check]:
    """Examine any checkpoint and its tokenizer: rows that were never trained, tokens that no text yields.

    Only the embedding tables are read, not the other weights.

    Raises:
        DataError: The checkpoint cannot be loaded at all.
    """

    def check_side(
        model: Any,
        vocabulary: Vocabulary,
        _place: Path,
        side: str,
        name: str,
    ) -> Iterator[Check]:
        return examine_table(TensorRows(input_table(model, side)), vocabulary, name)

    return _examine(directory, check_side, lambda model: ())


def examine_table(
    table: Rows,
    vocabulary: Vocabulary,
    name: str = "",
) -> Iterator[Check]:
    """Compare a table [R, d] with its vocabulary; ``name`` precedes the names of the checks."""
    beyond = [surface for surface in vocabulary.surfaces[len(table) :] if surface]
    num_free = max(0, len(table) - len(vocabulary)) + len(vocabulary.gaps)
    detail = f"{len(vocabulary)} ids, {len(table)} rows, {num_free} of them without a token"
    detail += f"; without a row: {name_some(beyond)}" if beyond else ""
    yield Check(f"{name}ids have rows", not beyond, detail)
    # Tokens that no text yields cannot have been trained, so their rows are not examined below.
    unreachable = set(unreachable_tokens(vocabulary))
    named = name_some([vocabulary.surfaces[i] for i in sorted(unreachable)])
    num_reserved = sum(tok is not None and tok.kind is Kind.UNUSED for tok in vocabulary.tokens)
    detail = f"{len(unreachable)} tokens that no text yields{f': {named}' if unreachable else ''}"
    detail += f"; {num_reserved} reserved"
    yield Check(f"{name}tokens are reachable", not unreachable, detail)
    normal = np.flatnonzero(vocabulary.is_normal[: len(table)])
    read = np.array([i for i in normal if i not in unreachable])
    yield from _check_learning(table, vocabulary, read, name)


def unreachable_tokens(vocabulary: Vocabulary) -> list[int]:
    """List the tokens of text that their own tokenizer never yields, ascending.

    It spells their text with other tokens, or changes it first, e.g. to lower case.
    """
    unreachable = []
    for identity in np.flatnonzero(vocabulary.is_normal).tolist():
        tok = vocabulary.token(identity)
        if not tok.core:
            continue
        pieces = [piece.id for piece in vocabulary.segment(tok)]
        if pieces != [identity] or vocabulary.normalised(tok) != tok:
            unreachable.append(identity)
    return unreachable


def _check_learning(
    table: Rows,
    vocabulary: Vocabulary,
    read: NDArray[np.int64],
    name: str,
) -> Iterator[Check]:
    """Look for rows of reachable tokens that are equal or small, which rows that were trained are not."""
    digests = _row_digests(table)
    first: dict[bytes, int] = {}
    alike = [i for i in read.tolist() if first.setdefault(digests[i], i) != i]
    named = name_some([f"{vocabulary.surfaces[i]} = {vocabulary.surfaces[first[digests[i]]]}" for i in alike])
    yield Check(f"{name}rows differ", not alike, named or "no two readable tokens have the same row")
    norms = row_norms(table)[read]
    median = float(np.median(norms)) if len(norms) else 0.0
    small = read[norms < SMALL_NORM * median]
    named = name_some([vocabulary.surfaces[i] for i in small.tolist()])
    detail = f"{len(small)} rows below {SMALL_NORM} times the median norm {median:.3g}"
    yield Check(f"{name}rows have learned", not len(small), f"{detail}: {named}" if len(small) else detail)


def _row_digests(table: Rows) -> list[bytes]:
    """Make a digest of each row; equal ones belong to equal rows."""
    digests = []
    for start in range(0, len(table), CHUNK_ROWS):
        part = table[start : start + CHUNK_ROWS]
        # Digests instead of the rows themselves, which a large table would hold twice.
        digests += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in part]
    return digests
