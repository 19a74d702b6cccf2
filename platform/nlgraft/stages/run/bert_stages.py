"""A BERT of Hugging Face as the pretrained model: encoder and, with fresh cross-attention, decoder.

Its special tokens come first here, as in every vocabulary, then those of languages, which it lacks and whose
rows are copies of its [CLS]; the others keep their order, [unused] ones too.
Source: Rothe et al. (2020), section 2 (BERT2BERT).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.efficiency import count_parameters
from nlgraft.evaluation.scores import Score
from nlgraft.nn.conversion.encoders import (
    encoder_from_hugging_face,
    read_checkpoint_config,
    read_encoder_config,
)
from nlgraft.nn.masked_lm_models import EncoderMaskedLM
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.config_parts import MASK_TOKEN
from nlgraft.stages.released_graph import BERT_ARCHITECTURE, BERT_MASKED_LM, BERT_TOKENIZER
from nlgraft.stages.run.mbart_stages import with_rows
from nlgraft.stages.run.text_stages import WORDPIECE_FILE
from nlgraft.text.files import read_json, write_json
from nlgraft.text.tokenizers import PAD, SPECIAL_PIECES, UNK
from nlgraft.training.masked_lm_training import write_masked_lm
from nlgraft.training.models import write_description
from nlgraft.vocab.tokenizers.directories import find_tokenizer
from nlgraft.vocab.tokenizers.loading import added_token, load_vocabulary, read_lines, wordpiece_json
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary

ROLES = ("pad", "unk", "cls", "sep", "mask")
"""Roles whose tokens get the first ids, under our names."""
THEIR_IDS_FILE = "their_ids.json"
"""File beside the renumbered tokenizer: the checkpoint's id of each of our tokens."""


def renumber_tokenizer(context: StageContext) -> None:
    """Write the WordPiece tokenizer of a checkpoint with this project's special tokens.

    Raises:
        DataError: There is no WordPiece tokenizer, or it lacks a special token of BERT's.
    """
    settings, _ = BERT_TOKENIZER.read(context)
    directory = find_tokenizer(context.locations["checkpoint"], settings.revision)
    if (directory / WORDPIECE_FILE).is_file():
        document = read_json(directory / WORDPIECE_FILE)
    elif (directory / "vocab.txt").is_file():
        document = wordpiece_json(read_lines(directory / "vocab.txt"), directory)
    else:
        raise DataError(
            f"{directory}: no tokenizer; a BERT's directory holds {WORDPIECE_FILE} or vocab.txt beside "
            "config.json and its weights"
        )
    added = (settings.languages, settings.symbols)
    made, ids = renumbered(document, load_vocabulary(directory), directory, *added)
    text = json.dumps(made, ensure_ascii=False, indent=1)
    (context.directory / WORDPIECE_FILE).write_text(text + "\n", "utf-8")
    (context.directory / THEIR_IDS_FILE).write_text(json.dumps(ids) + "\n", "utf-8")


def renumbered(
    document: Mapping[str, Any],
    vocabulary: Vocabulary,
    where: Path,
    languages: Sequence[str] = (),
    symbols: Sequence[str] = (),
) -> tuple[dict[str, Any], list[int]]:
    """Put the special tokens of a WordPiece tokenizer first, under our names.

    Args:
        document: Its ``tokenizer.json``; left alone.
        vocabulary: The same, read.
        where: For messages.
        languages: Special tokens of languages, added after the mask with [CLS]'s old id.
        symbols: Strings of text that become tokens behind them, with [SEP]'s old id.

    Returns:
        A ``tokenizer.json`` that cuts text as it did, and the old id of each new one.

    Raises:
        DataError: It is no WordPiece tokenizer, lacks a special token, or has a token of our names.
    """
    model = document["model"]
    if model.get("type", "WordPiece") != "WordPiece":
        raise DataError(f"{where}: a {model['type']} tokenizer; upstream.checkpoint takes a BERT's WordPiece")
    if missing := [role for role in ROLES if role not in vocabulary.roles]:
        raise DataError(
            f"{where}: no token for {', '.join(missing)}; a BERT's tokenizer has {', '.join(ROLES)}"
        )
    special = [vocabulary.roles[role] for role in ROLES]
    names = dict(zip(special, (*SPECIAL_PIECES, MASK_TOKEN), strict=True))
    # Ids without a token are dropped.
    rest = [i for i, surface in enumerate(vocabulary.surfaces) if surface and i not in names]
    if taken := {vocabulary.surfaces[i] for i in rest} & {*names.values(), *languages, *symbols}:
        raise DataError(f"{where}: {', '.join(sorted(taken))} among its tokens, which are names of ours")
    # A language begins a target as [CLS] begins a text; a symbol stands between parts, as [SEP] does.
    cls, sep = vocabulary.roles["cls"], vocabulary.roles["sep"]
    ids = [*special, *[cls] * len(languages), *[sep] * len(symbols), *rest]
    first = [*names.values(), *languages, *symbols]
    surfaces = [*first, *(vocabulary.surfaces[i] for i in rest)]
    new_ids = {old: new for new, old in enumerate(special)}
    new_ids |= {old: new for new, old in enumerate(rest, len(first))}
    # the unknown token is none of them: it is seen in decoded text, as symbols are
    added = [
        added_token(i, name) | {"special": name not in symbols} for i, name in enumerate(first) if i != UNK
    ]
    added += [
        {**entry, "id": new_ids[entry["id"]]}
        for entry in document.get("added_tokens") or []
        if entry["id"] not in names
    ]
    pieces = {surface: new for new, surface in enumerate(surfaces)}
    made = dict(document) | {
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "added_tokens": added,
        "decoder": document.get("decoder")
        or {"type": "WordPiece", "prefix": model.get("continuing_subword_prefix", "##"), "cleanup": True},
        "model": {**model, "type": "WordPiece", "unk_token": SPECIAL_PIECES[UNK], "vocab": pieces},
    }
    return made, ids


def read_encoder(context: StageContext) -> None:
    """Convert a BERT into our masked language model, its tokens renumbered.

    Raises:
        DataError: The weights are not readable, or belong to another tokenizer.
    """
    settings, inputs = BERT_MASKED_LM.read(context)
    path = context.locations["checkpoint"]
    try:
        read = encoder_from_hugging_face(path, settings.revision)
    except ContractError as error:
        raise DataError(f"upstream.checkpoint: {error}") from error
    ids: list[int] = json.loads((inputs.tokenizer / THEIR_IDS_FILE).read_text("utf-8"))
    num_theirs = len(read.model.source_embedding.state_dict()["table.weight"])
    if max(ids) >= num_theirs:
        raise DataError(
            f"{path}: its tokenizer reaches to id {max(ids)}, its table has {num_theirs} rows: they do not "
            "belong together"
        )
    masked = EncoderMaskedLM(with_rows(read.model, ids), read.head, can_predict=read.head is not None)
    write_masked_lm(masked, context.directory)
    write_json(context.directory / "notes.json", read.notes)
    size = Score("parameters", count_parameters(masked)[0], 1, "minimize", "of the masked language model")
    write_metrics(context.directory, {"upstream/parameters_total": size})


def read_architecture(context: StageContext) -> None:
    """Write the description of an encoder-decoder of a BERT's sizes, for a model without pretraining."""
    settings, _ = BERT_ARCHITECTURE.read(context)
    path = context.locations["checkpoint"]
    try:
        config = read_encoder_config(read_checkpoint_config(path, settings.revision), path)
    except ContractError as error:
        raise DataError(f"upstream.checkpoint: {error}") from error
    write_description(config.model_copy(update={"pad_id": PAD}), context.directory)
