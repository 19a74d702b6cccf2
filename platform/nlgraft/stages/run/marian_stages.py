"""Tokenizers of OPUS-MT: a SentencePiece model for each side, whose pieces are numbered by one vocabulary.

Here each side's model gets all pieces of the vocabulary in its order, so that one table serves both. Pieces
of the other side and those that the vocabulary lacks are marked as unused, which text never gives and
decoding knows: a character that it lacks is unknown, a longer piece falls apart into shorter ones.
Source: Tiedemann and Thottingal (2020), OPUS-MT; Junczys-Dowmunt et al. (2018), Marian.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from nlgraft.basics.errors import DataError
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.config_parts import MASK_TOKEN
from nlgraft.stages.kinds.released_kinds import MARIAN_TOKENIZER
from nlgraft.stages.run.mbart_stages import VOCABULARY_FILE, write_their_ids
from nlgraft.stages.run.text_stages import TOKENIZER_FILE
from nlgraft.text.tokenizers import BOS, EOS, PAD, SPECIAL_PIECES, UNK

_SPECIAL = {*SPECIAL_PIECES, MASK_TOKEN}
_FAR_BELOW = 100.0  # score of an unused piece below all others: a BPE merges it last


def renumber_tokenizer(context: StageContext) -> None:
    """Write the SentencePiece model of one side with this project's special tokens and all pieces.

    Raises:
        DataError: The vocabulary has languages, which this project's text does not name.
    """
    settings, _ = MARIAN_TOKENIZER.read(context)
    directory = Path(context.locations["checkpoint"])
    ids: dict[str, int] = json.loads((directory / VOCABULARY_FILE).read_text("utf-8"))
    if languages := [token for token in ids if token.startswith(">>") and token.endswith("<<")]:
        raise DataError(
            f"{directory}: an OPUS-MT with languages ({', '.join(languages[:3])}), which its sources begin "
            "with and ours do not; give one of a single pair of languages"
        )
    models = {side: _read(directory / f"{side}.spm") for side in ("source", "target")}
    pieces = _pieces(ids, [*models.values()])
    made = _with_pieces(models[settings.side], pieces, ids)
    (context.directory / TOKENIZER_FILE).write_bytes(made.SerializeToString())
    write_their_ids(ids, pieces, context.directory)


def _read(path: Path) -> Any:
    proto: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    proto.ParseFromString(path.read_bytes())
    return proto


def _pieces(ids: Mapping[str, int], models: Sequence[Any]) -> list[str]:
    """List the vocabulary in its order, then pieces of the models that it lacks."""
    ordered_pieces = [piece for piece in sorted(ids, key=ids.__getitem__) if piece not in _SPECIAL]
    of_text = (p.piece for model in models for p in model.pieces if p.type not in (p.CONTROL, p.UNKNOWN))
    return list(dict.fromkeys([*ordered_pieces, *(piece for piece in of_text if piece not in _SPECIAL)]))


def _with_pieces(proto: Any, pieces: Sequence[str], vocabulary: Container[str]) -> Any:
    pieces_by_name = {piece.piece: piece for piece in proto.pieces}
    lowest = min(piece.score for piece in proto.pieces) - _FAR_BELOW
    made = type(proto)()
    made.CopyFrom(proto)
    del made.pieces[:]
    for index, name in enumerate((*SPECIAL_PIECES, MASK_TOKEN)):
        piece = made.pieces.add(piece=name, score=0.0)
        piece.type = piece.UNKNOWN if index == UNK else piece.CONTROL
    for name in pieces:
        piece = made.pieces.add(piece=name, score=lowest)
        if name in pieces_by_name:
            piece.CopyFrom(pieces_by_name[name])
        if name not in pieces_by_name or name not in vocabulary:
            piece.type = piece.UNUSED
    spec = made.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, BOS, EOS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL_PIECES
    spec.vocab_size = len(made.pieces)
    return made
