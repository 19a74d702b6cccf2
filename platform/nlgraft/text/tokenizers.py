"""Tokenizers: SentencePiece with PAD=0, UNK=1, BOS=2, EOS=3, and those of the tokenizers library.

A word is a maximal run without white space, whatever the tokenizer makes of it. Masking is decided on words,
so that all vocabularies predict the same characters.
"""

from __future__ import annotations

import io
import logging
import os
import random
import re
import unicodedata
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.text.batches import Ragged
from nlgraft.text.corpus_config import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from nlgraft.text.files import chunks, write_json
from nlgraft.text.sampling import BpeSampler, PieceTable, UnigramSampler
from nlgraft.text.tokenizer_config import (
    MOST_TRAIN_LINES,
    NUM_BYTES,
    LearnedTokenizerConfig,
    WordTokenizerConfig,
)

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
        self,
        lines: Sequence[str],
        sample_alpha: float | None = None,
        seed: int | random.Random = 0,
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
    lines: Sequence[str],
    config: LearnedTokenizerConfig,
    path: Path,
    seed: int,
    symbols: Sequence[str] = (),
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


def _training_lines(
    lines: Sequence[str],
    config: LearnedTokenizerConfig,
    seed: int,
) -> list[str]:
    count = sum(1 for line in lines if line.strip())
    texts = (line.replace(_RESERVED, " ") for line in lines if line.strip())
    return sampled_lines(texts, count, seed, config.max_train_lines)


def _num_threads() -> int:
    """Read how many threads the process may have; OpenMP allows a list of them, the first of which counts."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal() and int(first):
        return int(first)
    return 1


def sampled_lines(
    lines: Iterable[str],
    count: int,
    seed: int = 0,
    most: int | None = None,
) -> list[str]:
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


def required_pieces(
    lines: Sequence[str],
    config: LearnedTokenizerConfig,
    symbols: Sequence[str] = (),
) -> int:
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
    for number in sorted(characters.values(), reverse=True):
        if covered / characters.total() >= config.character_coverage:
            break
        covered += number
        num_characters += 1
    num_special = len(SPECIAL_PIECES) + len(config.special_tokens) + len(symbols)
    return num_special + NUM_BYTES * config.has_byte_fallback + num_characters


def size_problem(
    vocab_size: int,
    required: int,
    *,
    has_coverage: bool = True,
) -> str | None:
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
        self,
        lines: Sequence[str],
        sample_alpha: float | None = None,
        seed: int | random.Random = 0,
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
        if self.normalization != "identity":
            return normalised(self._model, lines)
        return [*lines]

    def _sampler(self, alpha: float) -> UnigramSampler | BpeSampler:
        if alpha not in self._samplers:
            proto = parse_sentencepiece(self._model.serialized_model_proto())
            pieces = [*enumerate(proto.pieces)]
            symbols = tuple(piece.piece for _, piece in pieces if piece.type == piece.USER_DEFINED)
            ids = {piece.piece: i for i, piece in pieces if piece.type in (piece.NORMAL, piece.USER_DEFINED)}
            byte_ids = tuple(i for i, piece in pieces if piece.type == piece.BYTE)
            scores = {i: proto.pieces[i].score for i in ids.values()}
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


# Subword tokenizers in the file format of the tokenizers library, and text encoded with its words kept.


# Tokenizers of checkpoints in the format of the tokenizers library.
#
# ``WordPiece`` is renumbered PAD=0, UNK=1, BOS=2, EOS=3 like our SentencePiece models, ``ContextTokenizer``
# keeps the checkpoint's own ids and special tokens.


def _opened(path: Path) -> tokenizers.Tokenizer:
    """Open a tokenizer for text in which special tokens are plain text."""
    tokenizer = tokenizers.Tokenizer.from_str(path.read_text("utf-8"))
    # tokenizer.json may hold settings that pad and truncate lines.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # as ordinary text, despite the name
    return tokenizer


class _JsonTokenizer(Tokenizer):
    """A tokenizer in the format of the tokenizers library, in whose text special tokens are plain text."""

    has_special_tokens: bool

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._model = _opened(path)
        except Exception as error:  # the library raises nothing narrower
            raise StoreError(f"{path}: not a tokenizer.json ({error})") from error
        self.vocab_size = self._model.get_vocab_size()
        self.pieces = [self._model.id_to_token(i) or "" for i in range(self.vocab_size)]
        unknown = getattr(self._model.model, "unk_token", None)
        self.unknown_id = None if unknown is None else self._model.token_to_id(unknown)

    def encode(
        self,
        lines: Sequence[str],
        sample_alpha: float | None = None,
        seed: int | random.Random = 0,
    ) -> list[list[int]]:
        """Segment lines into ids; special tokens are added if ``has_special_tokens``.

        Raises:
            DataError: ``sample_alpha`` is set, but there is only one segmentation.
        """
        if sample_alpha is not None:
            raise DataError(
                f"{self.path.name}: sampling_alpha is {sample_alpha}, but it has one segmentation; "
                "leave sampling_alpha out"
            )
        has_special = self.has_special_tokens
        return [
            encoding.ids
            for chunk in chunks(lines)
            for encoding in self._model.encode_batch_fast(chunk, add_special_tokens=has_special)
        ]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Turn ids into text by the tokenizer's own decoder, without special tokens other than UNK.

        Text is not restored exactly: it stays lower-cased where the tokenizer does that, and spaces around
        punctuation follow the decoder's rules, as wherever the checkpoint is used.
        """
        return self._model.decode_batch(ids, skip_special_tokens=True)


class WordPiece(_JsonTokenizer):
    """A WordPiece tokenizer with special ids as in ``SentencePiece``.

    Text never produces a special token, and a word that no pieces spell is one UNK.

    Raises:
        StoreError: The file is missing, not a tokenizer, or has other special ids.
    """

    has_special_tokens = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        first_pieces = tuple(self.pieces[:4])
        if first_pieces != SPECIAL_PIECES:
            raise StoreError(
                f"{path}: pieces 0-3 are {first_pieces}, not {SPECIAL_PIECES}; renumber it first"
            )


class ContextTokenizer(_JsonTokenizer):
    """The tokenizer of a released encoder, which adds the special tokens that the encoder expects.

    Raises:
        StoreError: The file is missing or not a tokenizer.
    """

    has_special_tokens = True


TOKENIZER_FILE = "tokenizer.json"
WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASK_PIECE = "<mask>"
END_OF_TEXT = "<|endoftext|>"
"""Special token at both ends of a text of byte-level vocabularies."""
_WORD = re.compile(r"\S+")


def learn_tokenizer(
    lines: Sequence[str],
    config: WordTokenizerConfig,
    directory: Path,
) -> None:
    """Learn a vocabulary from text, of much text from a sample, and write it as ``tokenizer.json``.

    **Determinism**: the same lines and config give the same file, in any process.

    Raises:
        DataError: The text is blank, or the size cannot hold its characters.
    """
    _refuse_blank(lines, directory)
    lines = sampled_lines(lines, len(lines))
    is_wordpiece = config.kind == "wordpiece"
    learned = _wordpiece(lines, config) if is_wordpiece else _sentencepiece(lines, config, directory)
    learned.save(str(directory / TOKENIZER_FILE))


def _refuse_blank(lines: Sequence[str], directory: Path) -> None:
    if not any(line.strip() for line in lines):
        raise DataError(f"{directory.name}: no text to learn a tokenizer from, {len(lines)} blank lines")


def learn_byte_tokenizer(
    lines: Sequence[str],
    vocab_size: int,
    directory: Path,
) -> None:
    """Learn a byte-level BPE vocabulary, of much text from a sample; write ``tokenizer.json`` and settings.

    **Determinism**: the same lines and size give the same file, in any process.

    Raises:
        DataError: The text is blank.
    """
    _refuse_blank(lines, directory)
    learned = tokenizers.Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learned.train_from_iterator(sampled_lines(lines, len(lines)), trainer)
    learned.save(str(directory / TOKENIZER_FILE))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT}
    write_json(directory / "tokenizer_config.json", settings)


def _wordpiece(lines: Sequence[str], config: WordTokenizerConfig) -> tokenizers.Tokenizer:
    learned = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    normalizer = normalizers.BertNormalizer(lowercase=config.is_lowercase)
    # The trainer numbers pieces of words in the order of a hash map, which differs from process to process
    # and decides ties. Naming every one-character piece beforehand fixes the numbers.
    initial = _initial_tokens(lines, normalizer)
    problem = size_problem(config.vocab_size, len(initial), has_coverage=False)
    if problem:
        raise DataError(problem)
    learned.normalizer = normalizer
    learned.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learned.train_from_iterator(
        lines,
        trainers.WordPieceTrainer(vocab_size=config.vocab_size, special_tokens=initial, show_progress=False),
    )
    # The trainer has made special tokens of all of ``initial``; only the real ones may be special.
    whole = tokenizers.Tokenizer(models.WordPiece(learned.get_vocab(), unk_token="[UNK]"))
    whole.normalizer, whole.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    whole.decoder = decoders.WordPiece()
    whole.add_special_tokens(list(WORDPIECE_SPECIALS))
    return whole


def _initial_tokens(lines: Sequence[str], normalizer: normalizers.BertNormalizer) -> list[str]:
    characters = {c for line in lines for c in normalizer.normalize_str(line)}
    starts = sorted(c for c in characters if not c.isspace())
    return [*WORDPIECE_SPECIALS, *starts, *(f"##{c}" for c in starts)]


def required_tokens(lines: Sequence[str], config: WordTokenizerConfig) -> int:
    """Count the tokens that a vocabulary has at least: the special ones and the characters of the text."""
    lines = sampled_lines(lines, len(lines))
    if config.kind == "wordpiece":
        return len(_initial_tokens(lines, normalizers.BertNormalizer(lowercase=config.is_lowercase)))
    return required_pieces([_normalise(line, config) for line in lines], _sentencepiece_config(config))


def _normalise(line: str, config: WordTokenizerConfig) -> str:
    text = unicodedata.normalize("NFKC", line)
    return " ".join((text.lower() if config.is_lowercase else text).split())


def _sentencepiece_config(config: WordTokenizerConfig) -> LearnedTokenizerConfig:
    assert config.kind != "wordpiece"
    return LearnedTokenizerConfig(
        kind=config.kind,
        vocab_size=config.vocab_size,
        special_tokens=(MASK_PIECE,),
        normalization="identity",
    )


def _sentencepiece(
    lines: Sequence[str], config: WordTokenizerConfig, directory: Path
) -> tokenizers.Tokenizer:
    path = directory / "learned.model"
    train_sentencepiece([_normalise(line, config) for line in lines], _sentencepiece_config(config), path, 0)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    path.unlink()
    numbers = range(processor.get_piece_size())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in numbers]
    if config.kind == "unigram":
        whole = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=processor.unk_id(), byte_fallback=False))
    else:
        ids = {piece: i for i, (piece, _) in enumerate(pieces)}
        # fuse_unk makes neighbouring unknown characters one token, as SentencePiece does.
        whole = tokenizers.Tokenizer(models.BPE(ids, merges_of(ids), unk_token="<unk>", fuse_unk=True))
    steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if config.is_lowercase else [])]
    whole.normalizer = normalizers.Sequence(steps)  # pyright: ignore[reportArgumentType]
    whole.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    whole.decoder = decoders.Metaspace()
    whole.add_special_tokens(["<pad>", "<unk>", "<s>", "</s>", MASK_PIECE])
    return whole


def merges_of(pieces: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the merges of a BPE vocabulary whose pieces stand in the order in which they were learned."""
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]


class EncodedLines(NamedTuple):
    """Lines in token ids, without begin and end.

    Attributes:
        ids: Tokens of each line.
        words: Word number of each token within its line.
        word_sizes: Characters of each word of the whole line, words that were cut off included.
        num_cut: Lines that were cut.
    """

    ids: Ragged
    words: Ragged
    word_sizes: Ragged
    num_cut: int


def encode_words(
    tokenizer_file: Path,
    lines: Sequence[str],
    max_tokens: int | None = None,
) -> EncodedLines:
    """Encode lines; those of more than ``max_tokens`` tokens are cut behind the last word that fits.

    Special tokens written in text are ordinary text, but for unigram vocabularies, of which they are pieces.
    """
    tokenizer = _opened(tokenizer_file)
    encoded = []
    for line, encoding in zip(lines, _encodings(tokenizer, lines), strict=True):
        spans = [match.span() for match in _WORD.finditer(line)]
        numbers = _word_numbers(encoding.offsets, spans)
        # Byte-level vocabularies have tokens of white space, which without a word is no text.
        ids = encoding.ids if spans else []
        encoded.append((ids, numbers[: len(ids)], [end - start for start, end in spans]))
    return _cut_lines(encoded, max_tokens)


def _cut_lines(
    encoded: Sequence[tuple[list[int], list[int], list[int]]], max_tokens: int | None
) -> EncodedLines:
    """Cut lines of ids, word numbers and sizes of words behind the last word that fits."""
    lines, num_cut = [], 0
    for ids, numbers, sizes in encoded:
        if max_tokens is not None and len(ids) > max_tokens:
            count = _cut_at_word(numbers, max_tokens)
            ids, numbers, num_cut = ids[:count], numbers[:count], num_cut + 1
        lines.append((ids, numbers, sizes))
    ids, words, word_sizes = (Ragged.of(line[column] for line in lines) for column in range(3))
    return EncodedLines(ids, words, word_sizes, num_cut)


class WordSampler:
    """Segments lines by BPE with random merges left out.

    Source: Provilkov et al. (2020), BPE-Dropout.
    """

    def __init__(self, tokenizer_file: Path, dropout: float) -> None:
        """Read a BPE vocabulary that ``learn_tokenizer`` wrote, whose ids are in the order of its merges."""
        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        special = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        pieces = {piece: identity for piece, identity in ids.items() if piece not in special}
        scores = {identity: float(-identity) for identity in pieces.values()}
        table = PieceTable(pieces, scores, ids[SPECIAL_PIECES[UNK]])
        self._sampler = BpeSampler(table, dropout)

    def encode(
        self,
        lines: Sequence[str],
        max_tokens: int,
        seed: int,
    ) -> EncodedLines:
        """Encode lines as ``encode_words`` does; the same seed gives the same segmentations."""
        rng = random.Random(seed)
        encoded = []
        for line in lines:
            words = _WORD.findall(line)
            pieces = [self._word(word, rng) for word in words]
            numbers = [number for number, part in enumerate(pieces) for _ in part]
            encoded.append(([identity for part in pieces for identity in part], numbers, [*map(len, words)]))
        return _cut_lines(encoded, max_tokens)

    def _word(self, word: str, rng: random.Random) -> list[int]:
        assert self._tokenizer.normalizer is not None
        # NFKC may put spaces into a word (such as U+FDFA); the parts keep the word's number.
        parts = self._tokenizer.normalizer.normalize_str(word).split()
        return [identity for part in parts for identity in self._sampler.line(f"\u2581{part}", rng)]


def _encodings(tokenizer: tokenizers.Tokenizer, lines: Sequence[str]) -> Iterator[tokenizers.Encoding]:
    for chunk in chunks(lines):
        yield from tokenizer.encode_batch(chunk, add_special_tokens=False)


def _word_numbers(offsets: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]) -> list[int]:
    """Number the word of each token; a token of white space alone belongs to the next word."""
    ends = [end for _, end in words]
    return [min(bisect_right(ends, start), len(ends) - 1) for start, _ in offsets]


def _cut_at_word(numbers: Sequence[int], max_tokens: int) -> int:
    """Count the tokens of the whole words that fit; ``max_tokens`` where the first word alone is longer."""
    end = max_tokens
    while end and numbers[end] == numbers[end - 1]:
        end -= 1
    return end or max_tokens
