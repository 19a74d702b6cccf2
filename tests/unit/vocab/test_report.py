"""The dry-run report of a plan."""

from __future__ import annotations

import pytest

from nlgraft.vocab.building import build_plan
from nlgraft.vocab.encoding import text_encoder
from nlgraft.vocab.loading import load_vocabulary
from nlgraft.vocab.report import report_plan

OLD = ["[PAD]", "[UNK]", "motor", "##cycle", "##s", "x"]
NEW = ["[PAD]", "[UNK]", "motorcycle", "motor", "##s", "??"]


@pytest.fixture
def paths(tmp_path):
    for name, tokens in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return tmp_path / "old", tmp_path / "new"


def test_a_plan_in_numbers(paths):
    old, new = map(load_vocabulary, paths)
    plan = build_plan(old, new, "avg")
    encoders = (text_encoder(paths[0], old), text_encoder(paths[1], new))
    report = report_plan(plan, text=["motorcycle motorcycles", "motor"], encoders=encoders)
    assert report.counts == {"copy": 2, "special": 2, "composed": 1, "noise": 1}
    assert report.overlap == 0.5
    assert report.unused_old == 0.25
    assert (report.text.old_tokens, report.text.new_tokens) == (6, 4)
    assert report.text.old_fertility == 2.0
    assert report.text.compression == pytest.approx(4 / 6)
    assert report.worst[0].startswith("??: noise")
    assert "motorcycle: composed" in report.worst[1]
    text = report.to_text()
    assert "2.00 -> 1.33 tokens per word" in text
    assert "-33.3% tokens" in text
    assert report.to_json()["counts"]["copy"] == 2
    assert report.reasons == {
        "same token": 2,
        "role pad": 1,
        "role unk": 1,
        "2 subwords, 0 hyperwords": 1,
        "nothing similar and no known character": 1,
    }


def test_without_text_there_are_no_lengths(paths):
    plan = build_plan(*map(load_vocabulary, paths), "avg")
    report = report_plan(plan, num_worst=1)
    assert report.text is None
    assert len(report.worst) == 1
