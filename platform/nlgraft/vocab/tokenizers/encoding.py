"""Encode lines of text, by the tokenizer's own library where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.text.files import chunks
from nlgraft.vocab.tokenizers.vocabulary import Tok, Vocabulary

Encoder = Callable[[Sequence[str]], list[list[int]]]
"""Ids of every line, without special tokens."""


def sentencepiece_files(directory: Path) -> list[Path]:
    """List the SentencePiece models of a directory, or the two of a Marian if there is no other."""
    return sorted(directory.glob("*.model")) or sorted(directory.glob("*.spm"))


def text_encoder(path: str | Path, vocabulary: Vocabulary) -> Encoder:
    """Return a function that encodes lines under the tokenizer that ``vocabulary`` was loaded from.

    SentencePiece models and ``tokenizer.json`` run their own libraries; other vocabularies split text at
    spaces, and a word that they cannot spell is one unknown token.
    """
    path = Path(path)
    has_names = (path / "tokenizer_config.json").is_file() or (path / "vocab.json").is_file()
    if path.is_dir() and not has_names:
        # in a directory with nothing but a SentencePiece model, the ids are the model's
        models = sentencepiece_files(path)
        path = models[0] if models else path
    json_file = path / "tokenizer.json" if path.is_dir() else path
    # the tokenizer.json of a subword-nmt vocabulary expects text that is segmented already
    is_presegmented = bool(vocabulary.marking.joiner_suffix)
    if json_file.suffix == ".json" and json_file.is_file() and not is_presegmented:
        fast = open_tokenizer(json_file)
        return lambda lines: encode_batch(fast, lines)
    if path.suffix in (".model", ".spm") and not (path.parent / "vocab.json").is_file():
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return lambda lines: processor.encode([*lines])

    def encode(line: str) -> list[int]:
        return [i for word in line.split() for i in _pieces(vocabulary, word)]

    return lambda lines: [*map(encode, lines)]


def open_tokenizer(source: Path | Mapping[str, Any], name: str = "") -> Any:
    """Open a ``tokenizer.json`` with its own library, from its file or, under a name, from its contents.

    Raises:
        DataError: That does not take it, e.g. for a regular expression that is none.
    """
    import tokenizers  # imported here: most commands encode no text

    try:
        text = source.read_text("utf-8") if isinstance(source, Path) else json.dumps(source)
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no other
        raise DataError(f"{name or source}: the library `tokenizers` cannot read it ({error})") from error
    # Settings stored in the file would cut and pad lines.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@contextmanager
def search_errors() -> Iterator[None]:
    """Raise ``DataError`` where a regular expression of a tokenizer takes too many steps on a text."""
    try:
        yield
    except BaseException as error:
        # Where the library's search gives up, Rust panics; Python has no name for the class of that.
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizer cannot encode the text ({error}): its pre-tokenizer or normalizer has a regular "
            "expression that tries too many ways; simplify it"
        ) from error


def encode_batch(tokenizer: Any, lines: Sequence[str]) -> list[list[int]]:
    """Encode lines by the library ``tokenizers``, without special tokens.

    Raises:
        DataError: A regular expression of the tokenizer takes too many steps on them.
    """
    with search_errors():
        return [encoded.ids for encoded in tokenizer.encode_batch([*lines], add_special_tokens=False)]


def count_tokens(tokenizer: Any, lines: Sequence[str]) -> NDArray[np.int64]:
    """Count the occurrences of each id in a text, special tokens and padding left out."""
    largest = max(tokenizer.get_vocab().values())
    counts = np.zeros(largest + 1, dtype=np.int64)
    for chunk in chunks(lines):
        for ids in encode_batch(tokenizer, chunk):
            # Unlike counts[ids] += 1, this counts repeated ids.
            np.add.at(counts, ids, 1)
    return counts


def _pieces(vocabulary: Vocabulary, word: str) -> list[int]:
    tok = vocabulary.normalised(Tok(word.encode(), starts_word=True, ends_word=True))
    return [piece.id for piece in vocabulary.segment(tok)] or [
        identity for role, identity in vocabulary.roles.items() if role == "unk"
    ]


# Self-information of a text under a vocabulary.


def self_information(counts_V: NDArray[np.integer]) -> float:
    """Add up -log2 p over the tokens of a text, p a token's relative frequency in it, in bits.

    Args:
        counts_V: Occurrences of each token in the text.

    Source: Mosin et al. (2021), section 5, who print log2(1 / f) with the sign turned and counts for f, which
    would grow with the text's size.
    """
    counts = counts_V[counts_V > 0]
    return float((counts * np.log2(counts.sum() / counts)).sum())
