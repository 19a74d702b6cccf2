"""Scores, their signatures and the files they are kept in."""

import gzip
import math
import operator
import os
import random
from functools import partial, reduce
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sklearn.metrics import f1_score, matthews_corrcoef

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.evaluation.artifact import (
    read_lines,
    read_metrics,
    read_segments,
    write_evaluation,
    write_lines,
)
from nlgraft.evaluation.metric_config import SCORED, TextMetric
from nlgraft.evaluation.overlap import bleu_rows, check_bleu_tokenizer
from nlgraft.evaluation.scores import Score, evaluate_documents, evaluate_text
from nlgraft.evaluation.scripts import TextTokenizers
from nlgraft.evaluation.sufficient import STATISTIC_METRICS, aggregate, find_metric, segment_rows

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


# Sufficient statistics.


def segment_statistics(metric, hypotheses, references, **settings):
    return segment_rows(metric, hypotheses, references, **settings)[0]


def score(metric, hypotheses, references, **settings):
    return aggregate(metric, segment_statistics(metric, hypotheses, references, **settings).sum(0))


SENTENCES = [
    "Zwei junge weiße Männer sind im Freien, in der Nähe vieler Büsche.",
    "Mehrere Männer mit Schutzhelmen bedienen ein Antriebsradsystem.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster (3. Stock).",
    "Zwei Männer stehen am Herd und bereiten Essen zu -- für $12.50!",
    "Das Café öffnet um 9:30 Uhr; „nur heute“.",
    "Ja.",
    "Nein .",
    "",
    "日本語 の 文。",
]


@pytest.fixture
def _plain_sums(monkeypatch):
    """Let sacrebleu add logarithms as before Python 3.12, whose sum() of floats rounds once: 2 ulp apart."""
    monkeypatch.setattr("sacrebleu.metrics.bleu.sum", partial(reduce, operator.add), raising=False)


def noisy(sentences, seed):
    """Drop, repeat, swap and misspell words; leave some lines empty or alone."""
    rng = np.random.default_rng(seed)
    out = []
    for sentence in sentences:
        words = sentence.split()
        kind = rng.integers(6)
        if kind == 0:
            words = []
        elif kind == 1:
            rng.shuffle(words)
        elif kind >= 3:
            words = [
                w
                for word in words
                for w in [word[::-1] if rng.random() < 0.2 else word] * rng.choice([0, 1, 1, 1, 2])
            ]
        out.append(" ".join(words))
    return out


def corpora():
    base = SENTENCES * 12
    data = Path(os.environ.get("NLGRAFT_DATA", Path(__file__).parents[3].parent / "shared" / "data"))
    path = data / "multi30k" / "val.de.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            base = base + [line.rstrip("\n") for line in lines][:200]
    return [(noisy(base, seed), base) for seed in range(2)]


@pytest.mark.parametrize(
    ("name", "settings", "metric"),
    [
        ("bleu", {}, BLEU()),
        ("bleu", {"tokenizers": TextTokenizers(bleu="none")}, BLEU(tokenize="none")),
        ("bleu_zh", {}, BLEU(tokenize="zh")),
        ("chrf", {}, CHRF()),
        ("chrfpp", {}, CHRF(word_order=2)),
        ("ter", {}, TER()),
    ],
)
@pytest.mark.usefixtures("_plain_sums")
def test_aggregate_equals_sacrebleu_on_noisy_text(name, settings, metric):
    """Invariant F34: metrics against sacrebleu, on whole corpora and on every prefix length that differs."""
    for hypotheses, references in corpora():
        rows = segment_statistics(name, hypotheses, references, **settings)
        for size in (1, 2, 3, 7, 10, 50, len(rows)):
            expected = metric.corpus_score(hypotheses[:size], [references[:size]]).score
            assert aggregate(name, rows[:size].sum(0)) == pytest.approx(expected, abs=math.ulp(expected))


@pytest.mark.parametrize("tokenizer", ["13a", "zh", "char", "intl", "none"])
@pytest.mark.parametrize(
    "characters", [" .,-019a&{'\"@~", "ab  ", "你好a .,1- \u00a0\t&;<>quot", "ab.,12-\x1f\u2028 "]
)
def test_statistics_of_bleu_are_those_of_sacrebleu_segment_by_segment(tokenizer, characters):
    """Of any text, in more than one portion: we count n-grams ourselves, and leave spaces to be collapsed."""
    draw = random.Random(1)

    def line():
        return "".join(draw.choices(characters, k=draw.randint(0, 25)))

    hypotheses = ["", "", *(line() for _ in range(1100))]
    references = ["", "a", *(output[: draw.randint(0, 30)] + line() for output in hypotheses[2:])]
    metric = BLEU(tokenize=tokenizer, force=True)
    rows, signature = bleu_rows(tokenizer)(hypotheses, references)
    assert rows.tolist() == metric._extract_corpus_statistics(hypotheses, [references])
    assert signature == str(metric.get_signature())


def test_bleu_equals_that_of_sacrebleu_as_released():
    """Whose sum() of logarithms rounds once from Python 3.12 on, ours after each of them."""
    for hypotheses, references in corpora():
        expected = BLEU().corpus_score(hypotheses, [references]).score
        assert score("bleu", hypotheses, references) == pytest.approx(expected, abs=2 * math.ulp(expected))


@pytest.mark.usefixtures("_plain_sums")
@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_aggregate_is_vectorised_over_leading_axes(name):
    hypotheses, references = corpora()[0]
    rows = segment_statistics(name, hypotheses, references)
    counts = np.random.default_rng(0).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=(4, 3))
    values = aggregate(name, counts @ rows)
    assert values.shape == (4, 3)
    metric = {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}[name]
    resampled = np.repeat(np.arange(len(rows)), counts[2, 1])
    expected = metric.corpus_score([hypotheses[i] for i in resampled], [[references[i] for i in resampled]])
    assert values[2, 1] == pytest.approx(expected.score, abs=math.ulp(expected.score))


def test_bleu_by_hand():
    """Matches 4, 2, 1, 0 of 5, 4, 3, 2 n-grams: the missing order counts as half a match (exp smoothing)."""
    rows = segment_statistics("bleu", ["a b c x d"], ["a b c d e f"], tokenizers=TextTokenizers(bleu="none"))
    assert rows.tolist() == [[5, 6, 4, 2, 1, 0, 5, 4, 3, 2]]
    expected = 100 * math.exp(1 - 6 / 5) * (4 / 5 * 2 / 4 * 1 / 3 * 1 / (2 * 2)) ** 0.25
    assert aggregate("bleu", rows.sum(0)) == pytest.approx(expected)


def test_ter_by_hand():
    """One block moved and one word too many: 2 edits over 4 reference words."""
    rows = segment_statistics("ter", ["c d a b x"], ["a b c d"])
    assert rows.tolist() == [[2, 4]]
    assert aggregate("ter", rows.sum(0)) == 50
    assert aggregate("ter", np.array([3.0, 0.0])) == 100
    assert aggregate("ter", np.array([0.0, 0.0])) == 0


def test_rouge_by_hand():
    """3 of 4 and 3 of 3 unigrams, 1 of 3 and 1 of 2 bigrams, longest common subsequence 3."""
    hypothesis, reference = ["cats sat here"], ["the cat sat here"]
    assert score("rouge1", hypothesis, reference) == pytest.approx(600 / 7)
    expected = 100 * 2 * (2 / 2) * (2 / 3) / (2 / 2 + 2 / 3)
    assert score("rouge2", hypothesis, reference) == pytest.approx(expected)
    assert score("rouge_l", hypothesis, reference) == pytest.approx(600 / 7)


def test_rouge_lsum_is_taken_over_sentences():
    """The union of both reference sentences' matches, whatever their order: 5 of 5 words; ROUGE-L only 3."""
    hypothesis, reference = ["She left. The cat sat."], ["The cat sat. She left."]
    for name, expected in (("rouge_lsum", 100.0), ("rouge_l", 60.0)):
        assert score(name, hypothesis, reference) == pytest.approx(expected)


@pytest.mark.parametrize(("tokenizer", "expected"), [("english", 0), ("words", 1 / 2), ("characters", 8 / 9)])
def test_rouge_counts_the_words_of_its_tokenizer(tokenizer, expected):
    """One of two words on either side; four of four and of five characters; nothing is a to z."""
    tokenizers = TextTokenizers(rouge=tokenizer)
    rows = segment_rows("rouge1", ["문장을 나"], ["문장을 나는"], tokenizers=tokenizers)[0]
    assert rows[0, 0] == pytest.approx(expected)


def test_meteor_by_hand():
    """P = 2/3, R = 2/4, Fmean = PR / (0.9 P + 0.1 R), one chunk of two: penalty 0.5 * (1/2)^3."""
    rows = segment_statistics("meteor", ["the dogs x"], ["the dog ran away"])
    fmean = (2 / 3 * 1 / 2) / (0.9 * 2 / 3 + 0.1 * 1 / 2)
    assert rows == pytest.approx(np.array([[(1 - 0.5 * 0.125) * fmean, 1.0]]))


@pytest.mark.parametrize("seed", range(4))
def test_confusion_metrics_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 3, 60)
    predicted = np.where(rng.random(60) < 0.6, true, rng.integers(0, 3 + (seed == 1), 60))
    classes = 5  # two or one of them never occur: they must not count
    rows = np.zeros((60, classes**2))
    rows[np.arange(60), true * classes + predicted] = 1
    assert aggregate("macro_f1", rows.sum(0)) == pytest.approx(
        100 * f1_score(true, predicted, average="macro", zero_division=0)
    )
    assert aggregate("mcc", rows.sum(0)) == pytest.approx(100 * matthews_corrcoef(true, predicted))


def test_mcc_of_a_constant_prediction_is_zero():
    assert aggregate("mcc", np.array([3.0, 0, 2, 0])) == 0


def test_loss_and_length_are_ratios_of_sums():
    assert aggregate("loss", np.array([[6.0, 3.0], [1.0, 4.0]])).tolist() == [2.0, 0.25]
    assert aggregate("reference_length", np.array([12.0, 5.0])) == 2.4


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("bleu.without_source_2", "bleu"),
        ("test_bleu", "bleu"),
        ("test_2017_bleu", "bleu"),
        ("dev_doc_bleu", "doc_bleu"),
    ],
)
def test_a_variant_or_a_split_is_the_same_metric(name, metric):
    assert find_metric(name) is STATISTIC_METRICS[metric]


@pytest.mark.parametrize("name", ["sacre_bleu", "multi_bleu", "test_", "latest_bleu", "test_bleux"])
def test_a_name_that_only_ends_like_a_metric_is_refused(name):
    with pytest.raises(DataError, match=f"no metric '{name}'"):
        find_metric(name)


@pytest.mark.parametrize("name", get_args(TextMetric))
def test_every_metric_of_text_tells_a_copy_from_other_text(name):
    """A copy has the best value that there is: 100, or no edits; other words are worse."""
    reference = ["The old cat sat on a mat there today.", "Two more lines were read aloud today."]
    copy, other = (
        score(name, texts, reference)
        for texts in (reference, ["Nothing is alike here at all.", "Something else entirely."])
    )
    is_error = SCORED[name].direction == "minimize"
    assert copy == pytest.approx(0 if is_error else 100, abs=0.5)  # METEOR's penalty never is 0
    assert (other > copy + 10) if is_error else (other < copy - 10)


def test_every_metric_that_is_described_can_be_computed():
    assert list(STATISTIC_METRICS) == list(SCORED)


def test_metrics_of_text_are_those_that_can_be_computed_from_two_texts():
    assert {name for name, metric in STATISTIC_METRICS.items() if metric.rows} == set(get_args(TextMetric))


def test_errors_name_what_is_allowed():
    with pytest.raises(DataError, match=r"Did you mean 'chrf'\? Allowed: bleu,"):
        segment_statistics("chrff", ["a"], ["a"])
    with pytest.raises(DataError, match="2 hypotheses but 1 references"):
        segment_statistics("bleu", ["a", "b"], ["a"])
    with pytest.raises(DataError, match="does not compare two texts"):
        segment_statistics("loss", ["a"], ["a"])
    with pytest.raises(DataError, match="at least one"):
        segment_statistics("bleu", [], [])
