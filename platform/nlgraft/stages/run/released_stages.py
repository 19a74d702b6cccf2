"""Stages that use a released model as the pretrained one: an mBART or a relative, a Marian, a BERT.

An mBART numbers its tokens as fairseq does: four special tokens, the pieces of its SentencePiece model behind
one more place, languages, the mask. Here tokenizer and tables are renumbered as this project's own are
(padding, unknown, begin, end, mask, languages if they are asked for, pieces), so that nothing behind these
stages knows where the model came from. The row of the target's language becomes that of the begin of a
sentence, which is how an mBART starts a target. The pieces of an M2M-100 have ids of their own (vocab.json).
Source: Liu et al. (2020), Multilingual Denoising Pre-training for Neural Machine Translation, section 2.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.nn.architectures import Architecture
from nlgraft.nn.conversion.checkpoint import from_hugging_face
from nlgraft.nn.conversion.encoders import encoder_from_hugging_face, read_encoder_config
from nlgraft.nn.masked_lm_models import EncoderMaskedLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.modes import count_parameters
from nlgraft.nn.transformers_lms import read_checkpoint_config
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.config_parts import MASK_TOKEN
from nlgraft.stages.released_graph import (
    BERT_ARCHITECTURE,
    BERT_MASKED_LM,
    BERT_TOKENIZER,
    MARIAN_TOKENIZER,
    MBART,
    MBART_EOS,
    MBART_TOKENIZER,
)
from nlgraft.stages.run.text_stages import TOKENIZER_FILE, WORDPIECE_FILE, open_tokenizer
from nlgraft.text.files import read_json, write_json
from nlgraft.text.tokenizers import BOS, EOS, PAD, SPECIAL_PIECES, UNK, parse_sentencepiece
from nlgraft.training.masked_lm_training import write_masked_lm
from nlgraft.training.models import write_description, write_model
from nlgraft.training.weights import carry_over
from nlgraft.vocab.tokenizers.loading import (
    added_token,
    find_tokenizer,
    load_vocabulary,
    read_by_transformers,
    read_lines,
    wordpiece_json,
)
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary

SPM_FILE = "sentencepiece.bpe.model"
VOCABULARY_FILE = "vocab.json"
THEIR_IDS_FILE = "their_ids.json"
"""File beside a renumbered tokenizer: the checkpoint's ids of unknown text and of each piece; of a BERT, that
of each of our tokens."""
SPM_SPECIAL = ("<unk>", "<s>", "</s>")
"""First pieces of an mBART's SentencePiece model."""
THEIR_PAD, THEIR_UNK, THEIR_FIRST_PIECE = 1, 3, 4
OUTPUT = "output_projection"
_SILENT = -1e4  # beyond any logit, and finite in half precision
TABLE_NAMES = (
    "source_embedding.table.weight",
    "target_embedding.table.weight",
    f"{OUTPUT}.weight",
    f"{OUTPUT}.bias",
)


def renumber_tokenizer(context: StageContext) -> None:
    """Write the SentencePiece model of a checkpoint with this project's special tokens.

    Raises:
        DataError: The directory has no SentencePiece model of an mBART.
    """
    settings, _ = MBART_TOKENIZER.read(context)
    path = Path(context.locations["checkpoint"]) / SPM_FILE
    if not path.is_file():
        raise DataError(
            f"{path}: missing; an mBART's directory holds {SPM_FILE}, config.json and its weights"
        )
    proto = parse_sentencepiece(path.read_bytes())
    made = renumbered(proto, path, settings.languages, settings.symbols)
    (context.directory / TOKENIZER_FILE).write_bytes(made.SerializeToString())
    if (path.parent / VOCABULARY_FILE).is_file():
        ids = read_json(path.parent / VOCABULARY_FILE)
        write_their_ids(ids, [piece.piece for piece in proto.pieces[3:]], context.directory)


def write_their_ids(
    ids: Mapping[str, int],
    pieces: Sequence[str],
    directory: Path,
) -> None:
    """Write a checkpoint's ids of pieces; those that it lacks are unknown text to it."""
    unknown = ids["<unk>"]
    document = {"unknown": unknown, "pieces": [ids.get(piece, unknown) for piece in pieces]}
    (directory / THEIR_IDS_FILE).write_text(json.dumps(document) + "\n", "utf-8")


def renumbered(
    proto: Any,
    path: Path,
    languages: Sequence[str] = (),
    symbols: Sequence[str] = (),
) -> Any:
    """Put padding first, the mask and languages behind the special pieces of an mBART's SentencePiece model.

    Args:
        proto: The model; left alone.
        path: For the message.
        languages: Tokens of languages.
        symbols: Strings of text that become pieces behind them.

    Returns:
        A model with the same pieces and scores.

    Raises:
        DataError: Its first pieces are not those of an mBART, or a symbol is among its pieces.
    """
    first = tuple(piece.piece for piece in proto.pieces[:3])
    if first != SPM_SPECIAL:
        raise DataError(
            f"{path}: begins with {first}, an mBART's with {SPM_SPECIAL}: another kind of tokenizer"
        )
    if taken := {piece.piece for piece in proto.pieces} & {*symbols}:
        raise DataError(f"{path}: {', '.join(sorted(taken))} among its pieces, which are symbols of ours")
    # A user-defined piece is matched before the model segments, whatever its score.
    kind = proto.pieces[0].USER_DEFINED
    added = [type(proto.pieces[0])(piece=symbol, score=0.0, type=kind) for symbol in symbols]
    return _with_special_pieces(proto, languages, [*added, *proto.pieces[3:]])


def _with_special_pieces(
    proto: Any,
    languages: Sequence[str],
    pieces: Sequence[Any],
) -> Any:
    """Copy a SentencePiece model with this project's special pieces, those of languages, and others."""
    made = type(proto)()
    made.CopyFrom(proto)
    del made.pieces[:]
    for name in (*SPECIAL_PIECES, MASK_TOKEN, *languages):
        piece = made.pieces.add(piece=name, score=0.0)
        # Text never produces a control piece.
        piece.type = piece.UNKNOWN if name == SPECIAL_PIECES[UNK] else piece.CONTROL
    made.pieces.extend(pieces)
    spec = made.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, BOS, EOS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL_PIECES
    spec.vocab_size = len(made.pieces)
    return made


def their_rows(
    num_tokens: int,
    start_id: int,
    mask_id: int,
    language_ids: Sequence[int] = (),
) -> list[int]:
    """List which of an mBART's rows each of our tokens takes.

    Args:
        num_tokens: Size of the renumbered vocabulary.
        start_id: Their id of the token that becomes the begin of a target.
        mask_id: Their id of the mask.
        language_ids: Their ids of the languages and symbols that have tokens here.

    Returns:
        Their id of each of our ids.
    """
    num_pieces = num_tokens - len(SPECIAL_PIECES) - 1 - len(language_ids)
    pieces = range(THEIR_FIRST_PIECE, THEIR_FIRST_PIECE + num_pieces)
    return [THEIR_PAD, THEIR_UNK, start_id, MBART_EOS, mask_id, *language_ids, *pieces]


_tokenizer_of = cache(read_by_transformers)


def language_id(directory: str, language: int | str) -> int:
    """Find a checkpoint's id of a language given by id, or by token (``deu_Latn``; ``de`` for ``__de__``).

    Raises:
        DataError: It has no token of this language, or no tokenizer that transformers knows.
    """
    if isinstance(language, int):
        return language
    tokenizer = _tokenizer_of(directory)
    # M2M-100's does not count its languages among the special tokens
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "lang_token_to_id", {}).values()}
    special.discard(tokenizer.unk_token_id)
    for name in (f"__{language}__", language):
        token_id: int = tokenizer.convert_tokens_to_ids(name)
        if token_id in special:
            return token_id
    raise DataError(
        f"upstream.checkpoint {directory}: no language {language!r}; name it as the checkpoint does, as in "
        "de_DE (mBART), de (M2M-100) or deu_Latn (NLLB), in language_ids or data.languages"
    )


def read_checkpoint(context: StageContext) -> None:
    """Convert an mBART or a relative, its tokens renumbered.

    Raises:
        DataError: Nothing says how a target starts, a language is unknown, or the weights belong to another
            tokenizer.
    """
    path = context.locations["checkpoint"]
    released, info = from_hugging_face(path)
    settings, inputs = MBART.read(context)
    start_id = settings.start_id
    start_id = info.config.get("decoder_start_token_id") if start_id is None else language_id(path, start_id)
    language_ids = [language_id(path, language) for language in settings.language_ids]
    if not isinstance(start_id, int):
        raise DataError(
            f"{path}: config.json names no decoder_start_token_id; give upstream.start_id, the id of the "
            "target's language (cc25: 250003 for de_DE)"
        )
    num_theirs = int(info.config["vocab_size"])
    is_mbart = info.architecture is Architecture.MBART
    if (inputs.tokenizer / THEIR_IDS_FILE).is_file():
        document = read_json(inputs.tokenizer / THEIR_IDS_FILE)
        unknown = document["unknown"]
        ends = released.config.pad_id, info.config["eos_token_id"]
        first = [ends[0], unknown, start_id, ends[1], unknown]
        rows = [*first, *language_ids, *document["pieces"]]
    else:
        size = open_tokenizer(inputs.tokenizer).vocab_size
        # The mask is the last token of an mBART; a model of translation has none that it learned.
        rows = their_rows(size, start_id, num_theirs - 1 if is_mbart else THEIR_UNK, language_ids)
    if max(rows) >= num_theirs or (is_mbart and start_id in (THEIR_PAD, THEIR_UNK)):
        raise DataError(
            f"{path}: {num_theirs} tokens in config.json, but its tokenizer and upstream.start_id {start_id} "
            f"reach to {max(rows)}"
        )
    # Their ids number one table; with two, each side would need ids of its own.
    if len(released.output_projection.weight) != num_theirs:
        raise DataError(f"{path}: a vocabulary of its own for each side; give a checkpoint with one for both")
    model = with_rows(released, rows, has_silent_copies=info.architecture is Architecture.MARIAN)
    write_model(model, context.directory)
    _write_size(model, "tied parameters once", context.directory)


def _write_size(
    model: nn.Module,
    note: str,
    directory: Path,
) -> None:
    size = Score(count_parameters(model)[0], 1, "minimize", note)
    write_metrics(directory, {"upstream/parameters_total": size})


def with_rows(
    model: Seq2Seq,
    rows: Sequence[int],
    *,
    has_silent_copies: bool = False,
) -> Seq2Seq:
    """Number the tokens of a model anew; rows that none of them names are dropped.

    Args:
        model: Any model with tables.
        rows: Old id of each new one.
        has_silent_copies: The output bias keeps tokens from being said that take the row of an earlier one;
            a Marian begins with its padding, which it must never say.

    Returns:
        A new model whose padding is token 0.
    """
    has_bias = model.config.has_output_bias or has_silent_copies
    config = model.config.model_copy(update={"pad_id": PAD, "has_output_bias": has_bias})
    index = torch.tensor(rows)
    weights = {
        name: tensor[index] if name in TABLE_NAMES else tensor for name, tensor in model.state_dict().items()
    }
    if has_silent_copies:
        bias = weights.get(f"{OUTPUT}.bias", torch.zeros(len(rows))).clone()
        first = {row: place for place, row in reversed([*enumerate(rows)])}
        bias[[place for place, row in enumerate(rows) if first[row] != place]] = _SILENT
        weights[f"{OUTPUT}.bias"] = bias
    with torch.random.fork_rng(devices=[]):
        made = Seq2Seq(config, len(rows), len(rows))
    carry_over(made, weights)
    return made


# Tokenizers of OPUS-MT: a SentencePiece model for each side, whose pieces are numbered by one vocabulary.
#
# Here each side's model gets all pieces of the vocabulary in its order, so that one table serves both. Pieces
# of the other side and those that the vocabulary lacks are marked as unused, which text never gives and
# decoding knows: a character that it lacks is unknown, a longer piece falls apart into shorter ones.
# Source: Tiedemann and Thottingal (2020), OPUS-MT; Junczys-Dowmunt et al. (2018), Marian.


_SPECIAL = {*SPECIAL_PIECES, MASK_TOKEN}
_FAR_BELOW = 100.0  # score of an unused piece below all others: a BPE merges it last


def renumber_marian_tokenizer(context: StageContext) -> None:
    """Write the SentencePiece model of one side with this project's special tokens and all pieces.

    Raises:
        DataError: The vocabulary has languages, which this project's text does not name.
    """
    settings, _ = MARIAN_TOKENIZER.read(context)
    directory = Path(context.locations["checkpoint"])
    ids: dict[str, int] = read_json(directory / VOCABULARY_FILE)
    if languages := [token for token in ids if token.startswith(">>") and token.endswith("<<")]:
        raise DataError(
            f"{directory}: an OPUS-MT with languages ({', '.join(languages[:3])}), which its sources begin "
            "with and ours do not; give one of a single pair of languages"
        )
    models = {
        side: parse_sentencepiece((directory / f"{side}.spm").read_bytes()) for side in ("source", "target")
    }
    pieces = _pieces(ids, [*models.values()])
    made = _with_pieces(models[settings.side], pieces, ids)
    (context.directory / TOKENIZER_FILE).write_bytes(made.SerializeToString())
    write_their_ids(ids, pieces, context.directory)


def _pieces(ids: Mapping[str, int], models: Sequence[Any]) -> list[str]:
    """List the vocabulary in its order, then pieces of the models that it lacks."""
    ordered_pieces = [piece for piece in sorted(ids, key=ids.__getitem__) if piece not in _SPECIAL]
    of_text = (p.piece for model in models for p in model.pieces if p.type not in (p.CONTROL, p.UNKNOWN))
    return list(dict.fromkeys([*ordered_pieces, *(piece for piece in of_text if piece not in _SPECIAL)]))


def _with_pieces(
    proto: Any,
    pieces: Sequence[str],
    vocabulary: Container[str],
) -> Any:
    pieces_by_name = {piece.piece: piece for piece in proto.pieces}
    lowest = min(piece.score for piece in proto.pieces) - _FAR_BELOW
    ordered_pieces = []
    for name in pieces:
        piece = type(proto.pieces[0])(piece=name, score=lowest)
        if name in pieces_by_name:
            piece.CopyFrom(pieces_by_name[name])
        if name not in pieces_by_name or name not in vocabulary:
            piece.type = piece.UNUSED
        ordered_pieces.append(piece)
    return _with_special_pieces(proto, (), ordered_pieces)


# A BERT: encoder and, with fresh cross-attention, decoder.
#
# Its special tokens come first here, as in every vocabulary, then those of languages, which it lacks and
# whose rows are copies of its [CLS]; the others keep their order, [unused] ones too.
# Source: Rothe et al. (2020), section 2 (BERT2BERT).


ROLES = ("pad", "unk", "cls", "sep", "mask")
"""Roles whose tokens get the first ids, under our names."""


def renumber_bert_tokenizer(context: StageContext) -> None:
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
    made, ids = renumbered_wordpiece(document, load_vocabulary(directory), directory, *added)
    write_json(context.directory / WORDPIECE_FILE, made)
    (context.directory / THEIR_IDS_FILE).write_text(json.dumps(ids) + "\n", "utf-8")


def renumbered_wordpiece(
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
    except (ContractError, DataError) as error:
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
    _write_size(masked, "of the masked language model", context.directory)


def read_architecture(context: StageContext) -> None:
    """Write the description of an encoder-decoder of a BERT's sizes, for a model without pretraining."""
    settings, _ = BERT_ARCHITECTURE.read(context)
    path = context.locations["checkpoint"]
    try:
        config = read_encoder_config(read_checkpoint_config(path, settings.revision), path)
    except ContractError as error:
        raise DataError(f"upstream.checkpoint: {error}") from error
    write_description(config.model_copy(update={"pad_id": PAD}), context.directory)
