"""Text of masked language models: tokenizers in one file format, encoded lines that remember their words.

A word is what spaces separate, whatever the tokenizer makes of it. What is masked is decided on words, so
that every vocabulary is asked about the same characters.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nlgraft.errors import DataError
from nlgraft.text.batches import Ragged
from nlgraft.text.config import TokenizerConfig
from nlgraft.text.tokenizers import train_sentencepiece
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.vocabulary import SUBSTITUTE_ROLES, Vocabulary
from trainables.embedding_transfer.masked_lm_config import WordTokenizerConfig

TOKENIZER_FILE = "tokenizer.json"
WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASK_PIECE = "<mask>"
_CHUNK_LINES = 10_000
"""Lines encoded at once: bounds memory, changes no result."""
_WORD = re.compile(r"\S+")


def learn_tokenizer(lines: Sequence[str], config: WordTokenizerConfig, directory: Path) -> None:
    """Learn a vocabulary from text and write it as ``tokenizer.json``.

    **Determinism**: the same lines and config give the same file, in any process.

    Args:
        lines: Text.
        config: Kind, size, case.
        directory: Where the file goes.

    Raises:
        DataError: There is no text, or the size cannot hold its characters.
    """
    if not any(line.strip() for line in lines):
        raise DataError(f"{directory.name}: no text to learn a tokenizer from, {len(lines)} blank lines")
    learned = _wordpiece(lines, config) if config.kind == "wordpiece" else _unigram(lines, config, directory)
    learned.save(str(directory / TOKENIZER_FILE))


def _wordpiece(lines: Sequence[str], config: WordTokenizerConfig) -> tokenizers.Tokenizer:
    learned = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    normalizer = normalizers.BertNormalizer(lowercase=config.is_lowercase)
    characters = sorted({c for line in lines for c in normalizer.normalize_str(line) if not c.isspace()})
    # The trainer numbers pieces of words in the order of a hash map, which differs from process to process
    # and decides ties. Naming every one-character piece beforehand fixes the numbers.
    initial = [*WORDPIECE_SPECIALS, *characters, *(f"##{character}" for character in characters)]
    if config.vocab_size < len(initial):
        raise DataError(
            f"vocab_size is {config.vocab_size}, but the characters of the text and the special tokens need "
            f"{len(initial)}; raise vocab_size"
        )
    learned.normalizer = normalizer
    learned.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learned.train_from_iterator(
        lines,
        trainers.WordPieceTrainer(vocab_size=config.vocab_size, special_tokens=initial, show_progress=False),
    )
    whole = tokenizers.Tokenizer(models.WordPiece(learned.get_vocab(), unk_token="[UNK]"))
    whole.normalizer, whole.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    whole.decoder = decoders.WordPiece()
    whole.add_special_tokens(list(WORDPIECE_SPECIALS))
    return whole


def _unigram(lines: Sequence[str], config: WordTokenizerConfig, directory: Path) -> tokenizers.Tokenizer:
    def normalise(line: str) -> str:
        text = unicodedata.normalize("NFKC", line)
        return " ".join((text.lower() if config.is_lowercase else text).split())

    path = directory / "learned.model"
    settings = TokenizerConfig(
        kind="unigram",
        vocab_size=config.vocab_size,
        special_tokens=(MASK_PIECE,),
        normalization="identity",
    )
    train_sentencepiece([normalise(line) for line in lines], settings, path, 0)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    path.unlink()
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    whole = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=processor.unk_id(), byte_fallback=False))
    steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if config.is_lowercase else [])]
    whole.normalizer = normalizers.Sequence(steps)  # pyright: ignore[reportArgumentType]
    whole.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    whole.decoder = decoders.Metaspace()
    whole.add_special_tokens(["<pad>", "<unk>", "<s>", "</s>", MASK_PIECE])
    return whole


@dataclass(frozen=True)
class EncodedText:
    """A split of a corpus in token ids, without begin and end.

    Attributes:
        ids: Tokens of every line.
        words: Number of each token's word in its line, like ``ids``.
        sizes: Characters of each word of the whole line, of those cut off as well.
    """

    ids: Ragged
    words: Ragged
    sizes: Ragged

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int | None) -> EncodedText:
        """Take the first lines.

        Args:
            count: How many, at most; None for all.

        Returns:
            Those lines.
        """
        num = len(self) if count is None else min(count, len(self))
        parts = (self.ids, self.words, self.sizes)
        return EncodedText(*(Ragged(p.values[: p.offsets[num]], p.offsets[: num + 1]) for p in parts))

    def write(self, directory: Path, split: str) -> None:
        """Write the split.

        Args:
            directory: Artifact being written.
            split: Its name.
        """
        for part in ("ids", "words", "sizes"):
            getattr(self, part).write(directory / f"{split}-{part}.safetensors")

    @classmethod
    def read(cls, directory: Path, split: str) -> EncodedText:
        """Read what ``write`` wrote.

        Args:
            directory: The artifact.
            split: Name of the split.

        Returns:
            The split.
        """
        parts = (directory / f"{split}-{part}.safetensors" for part in ("ids", "words", "sizes"))
        return cls(*(Ragged.read(path) for path in parts))


class MaskedTokenizer:
    """The tokenizer of a masked language model.

    Attributes:
        vocabulary: Its tokens in canonical form, with their roles.
        pad, unk, cls, sep, mask: Ids of the special tokens; where there is no token for begin or end of a
            text, that of begin or end of a sentence.
    """

    def __init__(self, directory: Path) -> None:
        """Open a tokenizer.

        Args:
            directory: Holds ``tokenizer.json``, and the files that name the special tokens where names are
                unusual.

        Raises:
            DataError: A special token is missing.
        """
        self._model = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        self._model.no_padding()
        self._model.no_truncation()
        self.vocabulary: Vocabulary = load_vocabulary(directory)
        self._name = str(directory)
        self.pad, self.unk, self.mask = (self._role(role) for role in ("pad", "unk", "mask"))
        self.cls, self.sep = self._role("cls"), self._role("sep")

    def _role(self, role: str) -> int:
        roles = self.vocabulary.roles
        for candidate in (role, SUBSTITUTE_ROLES.get(role, role)):
            if candidate in roles:
                return roles[candidate]
        raise DataError(
            f"{self._name}: no {role} token, so it is not the tokenizer of a masked language model; "
            f"it has {', '.join(sorted(roles)) or 'no special tokens'}"
        )

    def encode(self, lines: Sequence[str], max_tokens: int) -> tuple[EncodedText, int]:
        """Cut lines into tokens.

        Args:
            lines: Text.
            max_tokens: Most tokens of a line, without begin and end; what is beyond is cut off at a word.

        Returns:
            The encoded lines, and how many were cut.
        """
        ids: list[list[int]] = []
        words: list[list[int]] = []
        sizes: list[list[int]] = []
        num_cut = 0
        for line, found in zip(lines, self._encodings(lines), strict=True):
            spans = [match.span() for match in _WORD.finditer(line)]
            numbers = _word_numbers(found.offsets, spans)
            kept = len(numbers)
            if kept > max_tokens:
                num_cut += 1
                kept = _cut_at_word(numbers, max_tokens)
            ids.append(found.ids[:kept])
            words.append(numbers[:kept])
            sizes.append([end - start for start, end in spans])
        return EncodedText(Ragged.of(ids), Ragged.of(words), Ragged.of(sizes)), num_cut

    def _encodings(self, lines: Sequence[str]) -> Iterator[tokenizers.Encoding]:
        for start in range(0, len(lines), _CHUNK_LINES):
            chunk = list(lines[start : start + _CHUNK_LINES])
            yield from self._model.encode_batch(chunk, add_special_tokens=False)


def _word_numbers(offsets: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]) -> list[int]:
    """Number the word of each token; a token that is only space belongs to the word behind it."""
    ends = [end for _, end in words]
    return [min(bisect_right(ends, start), len(ends) - 1) for start, _ in offsets]


def _cut_at_word(numbers: Sequence[int], most: int) -> int:
    """Tokens of the whole words that fit into ``most``; ``most`` itself where the first word is longer."""
    end = most
    while end and numbers[end] == numbers[end - 1]:
        end -= 1
    return end or most
