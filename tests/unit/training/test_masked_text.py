"""Special tokens that masking needs; splits of encoded text."""

from __future__ import annotations

import pytest
import tokenizers

from nlgraft.errors import DataError
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from tests.tiny_masked_lms import LINES, SPECIALS, pieces


def test_special_tokens_are_found_by_role(tmp_path):
    ids = pieces(tmp_path).ids
    assert [ids.pad, ids.unk, ids.begin, ids.end, ids.mask] == [*range(len(SPECIALS))]
    assert ids.normal.tolist()[:2] == [5, 6]


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]")
    )
    plain.add_special_tokens(["[PAD]", "[UNK]"])
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="no mask token"):
        MaskingIds.of(load_vocabulary(tmp_path))


def test_first_lines_keep_all_streams(tmp_path):
    text = pieces(tmp_path).encode(LINES)
    first = text.first(2)
    assert len(first) == 2
    assert len(text.first(99)) == len(LINES)
    for name in text.streams:
        assert all((first.stream(name)[row] == text.stream(name)[row]).all() for row in range(2))
    assert first.stream(TEXT)[1].tolist() != first.stream(TEXT)[0].tolist()
