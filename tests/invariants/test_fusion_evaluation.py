"""Invariant F34: paired tests on statistics of BLEU."""

import random

from nlgraft.analysis.data.trials import Measured
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.evaluation.scores import evaluate_text


def texts(num=120):
    """References, and outputs in which every word is lost with a probability."""
    draw = random.Random(0)
    words = [f"word{n}" for n in range(60)]
    references = [" ".join(draw.choices(words, k=draw.randrange(6, 14))) for _ in range(num)]

    def outputs(loss, seed):
        noise = random.Random(seed)
        kept = [[w for w in line.split() if noise.random() >= loss] or ["word0"] for line in references]
        return [" ".join(line) for line in kept]

    return references, outputs


def measured(hypotheses, references):
    evaluation = evaluate_text(hypotheses, references, ["bleu"])
    score = evaluation.scores["bleu"]
    return {1: Measured(score.value, evaluation.statistics["bleu"], score.signature)}


def test_bootstrap_of_equal_and_of_clearly_better_systems():
    """Identical systems have p of at least .5, a clearly better one below .01; both to the digit again."""
    references, outputs = texts()
    good, same = outputs(0.1, 1), outputs(0.1, 1)
    bad = outputs(0.4, 2)

    def p(first, second):
        comparer = Comparer()
        comparison = comparer.contrast(
            "test/bleu", "a", "b", [(1.0, measured(first, references)), (-1.0, measured(second, references))]
        )
        return comparison.p, comparison.p_segments

    assert min(p(good, same)) >= 0.5
    assert max(p(good, bad)) < 0.01
    close = outputs(0.11, 3)
    assert p(good, close) == p(good, close)
    assert 0.01 < p(good, close)[1] <= 1
