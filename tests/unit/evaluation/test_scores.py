"""Scores, their signatures and the files they are kept in."""

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.evaluation.artifact import (
    read_lines,
    read_metrics,
    read_segments,
    write_evaluation,
    write_lines,
)
from nlgraft.evaluation.overlap import check_bleu_tokenizer
from nlgraft.evaluation.scores import Score, evaluate_documents, evaluate_text
from nlgraft.evaluation.scripts import TextTokenizers
from nlgraft.evaluation.sufficient import aggregate

HYPOTHESES = ["the cat sat on the mat .", "a dog", "nothing here at all"]
REFERENCES = ["the cat sat on a mat .", "a dog", "something here after all"]


def test_score_carries_n_direction_and_signature():
    scores = evaluate_text(HYPOTHESES, REFERENCES).scores
    assert list(scores) == ["bleu", "chrf", "ter"]
    bleu = BLEU(force=True)
    assert scores["bleu"].value == pytest.approx(bleu.corpus_score(HYPOTHESES, [REFERENCES]).score)
    assert scores["bleu"].signature == str(bleu.get_signature())
    assert (scores["bleu"].n, scores["bleu"].direction, scores["ter"].direction) == (
        3,
        "maximize",
        "minimize",
    )


def test_bleu_is_cased_and_says_so():
    """Invariant V53: the signature that is stored is that of cased BLEU."""
    scores = evaluate_text(["The Cat sat on a mat ."], ["the cat sat on a mat ."]).scores
    assert "case:mixed" in scores["bleu"].signature
    assert "tok:13a" in scores["bleu"].signature
    # n-grams without `The` and `Cat`: 5, 4, 3 and 2 of 7, 6, 5 and 4
    assert scores["bleu"].value == pytest.approx(100 * (5 * 4 * 3 * 2 / (7 * 6 * 5 * 4)) ** 0.25)
    assert scores["bleu"].to_json()["signature"] == scores["bleu"].signature


def test_signatures_differ_between_variants():
    metrics = ("bleu", "bleu_zh", "meteor", "rouge1", "rouge2")
    scores = evaluate_text(HYPOTHESES, REFERENCES, metrics).scores
    assert len({score.signature for score in scores.values()}) == len(metrics)
    assert "synonyms:no" in scores["meteor"].signature


def test_document_bleu_joins_the_sentences_of_a_document():
    documents = ["x", "y", "x"]
    evaluation = evaluate_documents(HYPOTHESES, REFERENCES, documents)
    joined = [f"{HYPOTHESES[0]} {HYPOTHESES[2]}", HYPOTHESES[1]]
    joined_references = [f"{REFERENCES[0]} {REFERENCES[2]}", REFERENCES[1]]
    expected = BLEU(force=True).corpus_score(joined, [joined_references]).score
    assert evaluation.scores["doc_bleu"].value == pytest.approx(expected)
    assert evaluation.scores["doc_bleu"].n == 2
    assert evaluation.scores["doc_bleu"].signature.startswith("unit:document|")


def test_files_of_two_splits_round_trip(tmp_path):
    strange = ["line\u2028separator", 'quote " and\nnewline', ""]
    for split in ("dev", "test"):
        evaluation = evaluate_text(strange, REFERENCES)
        speed = {"sentences_per_s": Score(12.5, 3, "maximize", "beam:5|batch:64|device:cpu")}
        write_evaluation(tmp_path, split, strange, REFERENCES, evaluation, speed)
    metrics = read_metrics(tmp_path)
    assert sorted(metrics) == sorted(
        f"{split}/{name}" for split in ("dev", "test") for name in ("bleu", "chrf", "ter", "sentences_per_s")
    )
    assert metrics["dev/sentences_per_s"] == {
        "value": 12.5,
        "n": 3,
        "signature": "beam:5|batch:64|device:cpu",
        "direction": "maximize",
    }
    segments = read_segments(tmp_path, "test")
    assert sorted(segments) == ["bleu", "chrf", "ter"]
    assert aggregate("chrf", segments["chrf"].sum(0)) == metrics["test/chrf"]["value"]
    assert read_lines(tmp_path / "hypotheses-dev.txt") == ["line separator", 'quote " and newline', ""]
    assert read_lines(tmp_path / "references-dev.txt") == REFERENCES


def test_read_segments_of_a_split_that_was_not_scored(tmp_path):
    with pytest.raises(StoreError, match="no statistics of split 'test'"):
        read_segments(tmp_path, "test")


def test_lines_keep_every_character_but_line_breaks(tmp_path):
    kept = ["", " a  b ", "\t", "\0", '"quoted" \\n', "\U0001f600", "\ufeffx"]
    broken = [
        "a\nb",
        "a\r\nb",
        *(f"a{chr(code)}b" for code in (11, 12, 13, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029)),
    ]
    write_lines(tmp_path / "lines.txt", kept + broken)
    assert read_lines(tmp_path / "lines.txt") == kept + ["a b"] * len(broken)
    assert len((tmp_path / "lines.txt").read_text("utf-8").splitlines()) == len(kept + broken)


def test_other_tools_find_the_scores_of_the_report_in_the_files(tmp_path):
    """The files as `sacrebleu REFERENCES -i HYPOTHESES` reads them, line breaks inside texts included."""
    hypotheses = ["the cat\nsat on\u2028the mat .", 'he said "no" at once', "a\r\nb c d e"]
    references = ["the cat sat on\u2028the mat .", 'he said\n"no" at all', "a b c\x85d e"]
    evaluation = evaluate_text(hypotheses, references)
    write_evaluation(tmp_path, "test", hypotheses, references, evaluation)
    plain = [
        (tmp_path / f"{side}-test.txt").read_text("utf-8").splitlines()
        for side in ("hypotheses", "references")
    ]
    bleu, chrf, ter = (
        metric.corpus_score(plain[0], [plain[1]]) for metric in (BLEU(force=True), CHRF(), TER())
    )
    for name, score in (("bleu", bleu), ("chrf", chrf), ("ter", ter)):
        assert evaluation.scores[name].value == pytest.approx(score.score, abs=1e-9), name


def test_evaluations_combine():
    both = evaluate_text(HYPOTHESES, REFERENCES, ("bleu",)) | evaluate_text(HYPOTHESES, REFERENCES, ("ter",))
    assert list(both.scores) == ["bleu", "ter"]
    assert np.array_equal(
        both.statistics["ter"], evaluate_text(HYPOTHESES, REFERENCES, ("ter",)).statistics["ter"]
    )


def test_a_normalisation_is_part_of_the_signature():
    plain, normalised = (
        evaluate_text(HYPOTHESES, REFERENCES, normalization=rule).scores for rule in ("identity", "nmt_nfkc")
    )
    for name, score in normalised.items():
        assert score.value == plain[name].value
        assert score.signature == f"{plain[name].signature}|norm:nmt_nfkc"


@pytest.mark.parametrize("tokenizer", ["zh", "char", "13a"])
def test_bleu_has_the_tokenizer_of_the_target_language(tokenizer):
    hypotheses, references = ["我们去北京。"], ["我们去上海。"]
    words = TextTokenizers(tokenizer)
    score = evaluate_text(hypotheses, references, ("bleu",), tokenizers=words).scores["bleu"]
    bleu = BLEU(tokenize=tokenizer, force=True)
    assert score.value == pytest.approx(bleu.corpus_score(hypotheses, [references]).score)
    assert score.signature == str(bleu.get_signature())
    assert f"tok:{tokenizer}" in score.signature


@pytest.mark.parametrize(
    ("tokenizer", "error", "message"),
    [
        ("ja-mecab", RuntimeError("Japanese"), r"ja-mecab needs `pip install 'sacrebleu\[ja\]'`"),
        ("ko-mecab", RuntimeError("Korean"), r"ko-mecab needs `pip install 'sacrebleu\[ko\]'`"),
        (
            "flores200",
            OSError("no network"),
            r"flores200 cannot be loaded \(no network\); sacreBLEU downloads",
        ),
    ],
)
def test_a_tokenizer_that_is_missing_is_explained(tokenizer, error, message, monkeypatch):
    def unavailable(**options):
        raise error

    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", unavailable)
    with pytest.raises(DataError, match=message):
        check_bleu_tokenizer(tokenizer)
