"""The dry-run report of a plan."""

import math

import pytest

from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.tokenizers.encoding import text_encoder
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab_tool.plan_report import report_plan

OLD = ["motor", "##cycle", "##s", "x"]
NEW = ["motorcycle", "motor", "##s", "qq"]


def reported(directory, old, new, method, text, **options):
    """Report a plan between two WordPiece vocabularies for a text."""
    vocabularies, encoded = [], []
    for name, tokens in (("old", old), ("new", new)):
        (directory / name).mkdir()
        (directory / name / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", *tokens]))
        vocabularies.append(load_vocabulary(directory / name))
        encoded.append(text_encoder(directory / name, vocabularies[-1])(text))
    lengths = {"text": text, "encoded": tuple(encoded)} if text else {}
    return report_plan(build_plan(*vocabularies, method), **lengths, **options)


def test_a_plan_in_numbers(tmp_path):
    report = reported(tmp_path, OLD, NEW, "avg", ["motorcycle motorcycles", "motor"])
    assert report.counts == {"copy": 2, "special": 2, "composed": 1, "noise": 1}
    assert report.overlap == 0.5
    assert report.unused_old == 0.25
    assert (report.text.old_tokens, report.text.new_tokens) == (6, 4)
    assert report.text.old_fertility == 2.0
    assert report.text.compression == pytest.approx(4 / 6)
    # 3 + 2 + 1 old tokens, 2 + 1 + 1 new ones, 27 bytes
    assert report.text.old_bits_per_byte == pytest.approx((3 + 2 * math.log2(3) + math.log2(6)) / 27)
    assert report.text.new_bits_per_byte == pytest.approx(6 / 27)
    assert report.worst[0].startswith("qq: noise")
    assert "motorcycle: composed" in report.worst[1]
    assert report.worst[1].endswith("[2 times in the text]")
    message = report.to_text()
    assert "2.00 -> 1.33 tokens per word" in message
    assert "-33.3% tokens" in message
    assert report.to_json()["counts"]["copy"] == 2
    assert report.reasons == {
        "same token": 2,
        "role pad": 1,
        "role unk": 1,
        "2 subwords, 0 hyperwords": 1,
        "no similar token and no known character": 1,
    }


def test_without_text_there_are_no_lengths(tmp_path):
    report = reported(tmp_path, OLD, NEW, "avg", [])
    assert report.text is None
    assert report.worst


def test_the_worst_rows_are_those_that_the_text_needs_most(tmp_path):
    vocabularies = ["a", "##b", "##c"], ["ab", "ac", "abc"]
    report = reported(tmp_path, *vocabularies, "fvt", ["ac abc ac", "abc ac"])
    assert [line.split(":")[0] for line in report.worst[:2]] == ["ac", "abc"]
    assert report.worst[0].endswith("[3 times in the text]")
