"""Tokenizers with PAD=0, UNK=1, BOS=2, EOS=3; SentencePiece, trained reproducibly."""

from __future__ import annotations

import io
import logging
import os
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.text.corpus_config import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from nlgraft.text.sampling import BpeSampler, PieceTable, UnigramSampler
from nlgraft.text.tokenizer_config import MOST_TRAIN_LINES, NUM_BYTES, LearnedTokenizerConfig

_LOG = logging.getLogger(__name__)
_MAX_LINE_BYTES = 1 << 24  # SentencePiece silently drops longer lines; the file reader truncates them before
_RESERVED = "\u2585"  # SentencePiece drops training lines with its mark for unknown characters


class Tokenizer(ABC):
    """What all tokenizers have in common.

    Attributes:
        path: File it was read from.
        pieces: The piece of every id.
        vocab_size: Number of pieces, special ones included.
        unknown_id: Id of text outside the vocabulary, if there is one.
        normalization: Unicode normalisation that text loses by encoding and decoding.
    """

    path: Path
    pieces: list[str]
    vocab_size: int
    unknown_id: int | None
    normalization: str = "identity"

    @abstractmethod
    def encode(
        self, lines: Sequence[str], sample_alpha: float | None = None, seed: int | random.Random = 0
    ) -> list[list[int]]:
        """Segment lines into ids, without BOS and EOS; with ``sample_alpha``, at random."""

    @abstractmethod
    def decode(self, ids: list[list[int]]) -> list[str]:
        """Turn ids into text without special tokens other than UNK; an empty list is an empty line."""

    def normalised(self, lines: Sequence[str]) -> list[str]:
        """Apply the normalisation to lines, so that hypotheses and references can be compared."""
        return [*lines]

    def id(self, piece: str) -> int:
        """Return the id of a piece.

        Raises:
            DataError: There is no such piece.
        """
        if piece not in self.pieces:
            raise DataError(f"{self.path.name}: no piece {piece!r} among {self.vocab_size}")
        return self.pieces.index(piece)


def parse_sentencepiece(content: bytes) -> Any:
    """Parse the file of a SentencePiece model, for what the processor does not tell, such as the type."""
    proto = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]  # generated
    proto.ParseFromString(content)
    return proto


def train_sentencepiece(
    lines: Sequence[str], config: LearnedTokenizerConfig, path: Path, seed: int, symbols: Sequence[str] = ()
) -> None:
    """Train a SentencePiece model and write it to ``path``.

    ``config.vocab_size`` is an upper bound: a small corpus gives fewer pieces, and the model's own
    ``vocab_size`` tells how many. ``seed`` draws the lines when ``config.max_train_lines`` leaves some out.
    ``symbols`` are one piece each wherever text has them, and decoding keeps them; their ids follow those of
    the special tokens.

    **Determinism**: the same lines, config and seed give the same bytes, in any process.

    Raises:
        DataError: There is no text, or ``vocab_size`` cannot hold its characters.
    """
    chosen = _training_lines(lines, config, seed)
    if not chosen:
        raise DataError(f"{path.name}: no text to train a tokenizer on ({len(lines)} lines, all blank)")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(chosen),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            # A small corpus has fewer pieces than requested, which is no error.
            hard_vocab_limit=False,
            character_coverage=config.character_coverage,
            byte_fallback=config.has_byte_fallback,
            normalization_rule_name=config.normalization,
            # Control symbols never match text, user-defined ones always do.
            control_symbols=list(config.special_tokens),
            user_defined_symbols=list(symbols),
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            # The pieces must not depend on the machine's number of processors.
            num_threads=1,
            max_sentence_length=_MAX_LINE_BYTES,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(_why(error, config, len(chosen))) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.getvalue())
    achieved = SentencePiece(path).vocab_size
    if achieved < config.vocab_size:
        _LOG.info("%s: the text gives %d of %d pieces", path.name, achieved, config.vocab_size)


def _training_lines(lines: Sequence[str], config: LearnedTokenizerConfig, seed: int) -> list[str]:
    count = sum(1 for line in lines if line.strip())
    texts = (line.replace(_RESERVED, " ") for line in lines if line.strip())
    return sampled_lines(texts, count, seed, config.max_train_lines)


def _num_threads() -> int:
    """Read how many threads the process may have; OpenMP allows a list of them, the first of which counts."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else 1


def sampled_lines(lines: Iterable[str], count: int, seed: int = 0, most: int | None = None) -> list[str]:
    """Draw at most so many of ``count`` lines, in their order; all where they are no more.

    Without ``most`` it is ``MOST_TRAIN_LINES``.
    """
    most = most or MOST_TRAIN_LINES
    if count <= most:
        return [*lines]
    is_drawn = bytearray(count)
    for number in random.Random(seed).sample(range(count), most):
        is_drawn[number] = True
    return [*compress(lines, is_drawn)]


def required_pieces(lines: Sequence[str], config: LearnedTokenizerConfig, symbols: Sequence[str] = ()) -> int:
    """Count the pieces that a vocabulary has at least: special tokens, symbols, bytes and covered characters.

    Source: the trainer of SentencePiece, which refuses a smaller ``vocab_size``; the arguments are those of
    `train_sentencepiece`.
    """
    words: Counter[str] = Counter()
    for line in _training_lines(lines, config, seed=0):
        for symbol in symbols:
            line = line.replace(symbol, " ")
        words.update(filter(None, line.split(" ")))
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=config.normalization)
    characters: Counter[str] = Counter()
    for word, number in zip(normalised(normalizer, [*words]), words.values(), strict=True):
        for character in f"\u2581{word}".replace(" ", "\u2581"):
            characters[character] += number
    covered, num_characters = 0, 0
    for _, number in sorted(characters.items(), key=lambda pair: (-pair[1], pair[0])):
        if covered / characters.total() >= config.character_coverage:
            break
        covered += number
        num_characters += 1
    num_special = len(SPECIAL_PIECES) + len(config.special_tokens) + len(symbols)
    return num_special + NUM_BYTES * config.has_byte_fallback + num_characters


def size_problem(vocab_size: int, required: int, *, has_coverage: bool = True) -> str | None:
    """Say that a vocabulary cannot hold the characters of its text, and what to do; None if it can."""
    if required <= vocab_size:
        return None
    other = ", or set has_byte_fallback: true and lower character_coverage" if has_coverage else ""
    return (
        f"vocab_size is {vocab_size}, but the characters of the text and the special tokens need {required}; "
        f"raise vocab_size{other}"
    )


def _why(error: RuntimeError, config: LearnedTokenizerConfig, num_lines: int) -> str:
    if "smaller than required_chars" in str(error):
        required = str(error).split(" vs ")[-1].split(".")[0]
        return size_problem(config.vocab_size, int(required)) or str(error)
    return (
        f"SentencePiece cannot train {config.vocab_size} {config.kind} pieces on {num_lines} lines: {error}"
    )


class SentencePiece(Tokenizer):
    """A trained SentencePiece model; its normalisation is a rule such as ``nmt_nfkc``."""

    def __init__(self, path: Path) -> None:
        """Read a model that ``train_sentencepiece`` wrote.

        Raises:
            StoreError: It is missing, not a model, or has other special ids.
        """
        self.path = path
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise StoreError(f"{path}: not a SentencePiece model ({error})") from error
        self.vocab_size = self._model.get_piece_size()
        self.unknown_id = UNK
        self.pieces = self._model.id_to_piece(list(range(self.vocab_size)))
        proto = parse_sentencepiece(self._model.serialized_model_proto())
        self.normalization = proto.normalizer_spec.name or "identity"
        self._samplers: dict[float, UnigramSampler | BpeSampler] = {}
        first_pieces = tuple(self.pieces[:4])
        if first_pieces != SPECIAL_PIECES:
            raise StoreError(
                f"{path}: pieces 0-3 are {first_pieces}, not {SPECIAL_PIECES}; train it with nlgraft"
            )

    def encode(
        self, lines: Sequence[str], sample_alpha: float | None = None, seed: int | random.Random = 0
    ) -> list[list[int]]:
        """Segment lines into ids, without BOS and EOS.

        ``sample_alpha`` is None for the best segmentation; else the smoothing of unigram sampling (Kudo 2018,
        from all segmentations) or the BPE-dropout probability (Provilkov et al. 2020).

        **Determinism**: sampled segmentations depend on the lines, ``sample_alpha`` and ``seed`` alone; give
        another seed for each epoch. A generator goes on where it is, for text that comes in parts.
        """
        if sample_alpha is None:
            return self._model.encode([*lines], num_threads=_num_threads())
        sampler = self._sampler(sample_alpha)
        rng = seed if isinstance(seed, random.Random) else random.Random(seed)
        return [sampler.line(line, rng) for line in self._model.normalize([*lines])]

    def normalised(self, lines: Sequence[str]) -> list[str]:
        """Apply the model's normalisation to lines; those of an ``identity`` model stay as they are."""
        return normalised(self._model, lines) if self.normalization != "identity" else [*lines]

    def _sampler(self, alpha: float) -> UnigramSampler | BpeSampler:
        if alpha not in self._samplers:
            is_text = [
                not (self._model.is_control(i) or self._model.is_unknown(i) or self._model.is_unused(i))
                and not self._model.is_byte(i)
                for i in range(self.vocab_size)
            ]
            ids = {piece: i for i, piece in enumerate(self.pieces) if is_text[i]}
            proto = parse_sentencepiece(self._model.serialized_model_proto())
            symbols = tuple(piece.piece for piece in proto.pieces if piece.type == piece.USER_DEFINED)
            byte_ids = tuple(i for i in range(self.vocab_size) if self._model.is_byte(i))
            scores = {i: self._model.get_score(i) for i in ids.values()}
            table = PieceTable(ids, scores, UNK, symbols, byte_ids)
            trainer = proto.trainer_spec
            is_bpe = trainer.model_type == trainer.BPE
            self._samplers[alpha] = BpeSampler(table, alpha) if is_bpe else UnigramSampler(table, alpha)
        return self._samplers[alpha]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Turn ids into text without special tokens other than UNK; an empty list is an empty line."""
        return self._model.decode(ids)


def normalised(normalizer: Any, lines: Sequence[str]) -> list[str]:
    """Apply the normalisation of a SentencePiece model or normaliser, as plain text with spaces."""
    return [line.replace("\u2581", " ").strip() for line in normalizer.normalize([*lines])]
