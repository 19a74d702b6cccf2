"""Decoding against enumeration and against a beam search that is written the slow way."""

import itertools
import math

import pytest
import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.generation import beam_search, forbid_repeats, length_limits, penalty, top_candidates
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from tests.tiny_models import SOURCES
from tests.tiny_models import tiny_decoder as make_model


def search(model, sources=SOURCES, **settings):
    return beam_search(model, [Tokens.from_lists(sources)], config=GenerationConfig(**settings))


def log_probabilities(model, source, ids):
    """Of every token behind the begin and behind each of the ids."""
    target = Tokens.from_lists([[2, *ids]])
    hidden = model(Batch([Tokens.from_lists([source])], target, target.ids))
    return model.logits(hidden)[0].log_softmax(-1)


def score(model, source, ids):
    """Log-probability of ids + end by one full pass."""
    logs = log_probabilities(model, source, ids)
    return sum(float(logs[step, token]) for step, token in enumerate([*ids, 3]))


def slow_beam(model, source, config, limit):
    """Reference: fairseq's beam search, one hypothesis at a time, whole prefixes decoded anew."""
    live, ended = [([], 0.0)], []
    for step in range(limit + 1):
        candidates = []
        for ids, log in live:
            logs = log_probabilities(model, source, ids)[-1]
            allowed = [t for t in range(len(logs)) if t != 0]
            if step < config.min_length:
                allowed.remove(3)
            if config.no_repeat_ngram:
                n = config.no_repeat_ngram
                seen = {tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)}
                allowed = [t for t in allowed if tuple([*ids, t][-n:]) not in seen]
            if step == limit:
                allowed = [3]
            candidates += [(log + float(logs[t]), ids, t) for t in allowed]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * config.beam]
        for log, ids, token in candidates[: config.beam]:
            if token == 3:
                ended.append((log / penalty(len(ids) + 1.0, config.length_penalty, config.alpha), ids))
        live = [([*ids, token], log) for log, ids, token in candidates if token != 3][: config.beam]
        if len(ended) >= config.beam or not live:
            break
    return sorted(ended, key=lambda e: -e[0])


def beside_slow_ones(model, config):
    """Each source with its hypotheses and the slow search's, whose ids are the same."""
    rows = []
    beams = beam_search(model, [Tokens.from_lists(SOURCES)], config=config)
    for source, hypotheses in zip(SOURCES, beams, strict=True):
        limit = int(config.max_length_ratio) * len(source) + config.max_length_offset
        expected = slow_beam(model, source, config, limit)
        assert [h.ids for h in hypotheses] == [ids for _, ids in expected[: config.num_return]]
        rows.append((source, hypotheses, expected))
    return rows


@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 1},
        {"beam": 4},
        {"beam": 3, "length_penalty": "average", "alpha": 1.0},
        {"beam": 3, "length_penalty": "none", "min_length": 3},
        {"beam": 2, "no_repeat_ngram": 2, "alpha": 1.5},
        {"beam": 5, "no_repeat_ngram": 1, "min_length": 2},
    ],
)
def test_equals_slow_beam_search(settings):
    model = make_model()
    num_return = min(2, settings["beam"])
    config = GenerationConfig(max_length_ratio=1, max_length_offset=3, num_return=num_return, **settings)
    for source, hypotheses, expected in beside_slow_ones(model, config):
        for hypothesis, (value, _) in zip(hypotheses, expected, strict=False):
            assert hypothesis.score == pytest.approx(value, abs=1e-6)
            assert hypothesis.log_probability == pytest.approx(score(model, source, hypothesis.ids), abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_beam_stays_full_though_every_hypothesis_may_end(seed):
    """The end is a top candidate of all three hypotheses at once: three more must be looked at."""
    model = make_model(seed=seed, sharpness=1.0, end_bias=1.0)
    config = GenerationConfig(beam=3, num_return=3, alpha=1.0, max_length_ratio=0, max_length_offset=6)
    assert len(beside_slow_ones(model, config)) == len(SOURCES)


def test_fewer_sequences_than_the_beam_is_wide_are_all_found():
    model = make_model(vocab=5)
    for hypotheses in search(model, beam=5, num_return=5, max_length_ratio=0, max_length_offset=1):
        assert sorted(h.ids for h in hypotheses) == [[], [1], [2], [4]]


def test_wide_beam_finds_the_best_of_all_sequences():
    """Invariant F33: beam >= V^L equals exhaustive search."""
    model = make_model(vocab=5, sharpness=1.0)
    settings = {"max_length_ratio": 0, "max_length_offset": 3, "stopping": "exact", "alpha": 1.0}
    [hypotheses] = search(model, SOURCES[:1], beam=64, num_return=3, **settings)
    words = [1, 2, 4]
    ranked = sorted(
        (
            (score(model, SOURCES[0], ids) / ((5 + len(ids) + 1) / 6), list(ids))
            for length in range(4)
            for ids in itertools.product(words, repeat=length)
        ),
        reverse=True,
    )
    assert [h.ids for h in hypotheses] == [ids for _, ids in ranked[:3]]
    assert [h.score for h in hypotheses] == pytest.approx([value for value, _ in ranked[:3]], abs=1e-6)


def test_exact_stopping_is_never_worse_than_first():
    model = make_model(seed=38)
    scores = {}
    for stopping in ("first", "exact"):
        beams = search(model, beam=2, alpha=2.0, max_length_offset=6, stopping=stopping)
        scores[stopping] = [hypotheses[0].score for hypotheses in beams]
    gains = [exact - first for exact, first in zip(scores["exact"], scores["first"], strict=True)]
    assert min(gains) > -1e-9
    assert max(gains) > 0.1


def test_penalties_by_hand():
    """Invariant F33: GNMT's formula, ((5+n)/6)^alpha: n=7, alpha=1 gives 2; n=1 gives 1."""
    assert penalty(7.0, "gnmt", 1.0) == 2.0
    assert penalty(1.0, "gnmt", 0.6) == 1.0
    assert penalty(7.0, "gnmt", 0.5) == pytest.approx(math.sqrt(2))
    assert penalty(8.0, "average", 0.5) == pytest.approx(math.sqrt(8))
    assert penalty(8.0, "none", 0.6) == 1.0


def test_no_ngram_comes_twice():
    """Invariant F33: trigram blocking, also when everything is blocked."""
    model = make_model(vocab=6, sharpness=0.1)
    model.output_projection.weight.data[3] = -1.0  # it hardly ever wants to end
    for beam in (1, 4):
        for [best] in search(model, beam=beam, no_repeat_ngram=3, max_length_offset=40):
            trigrams = [tuple(best.ids[i : i + 3]) for i in range(len(best.ids) - 2)]
            assert len(set(trigrams)) == len(trigrams)
            assert math.isfinite(best.score)


@pytest.mark.parametrize("beam", [1, 3])
def test_when_all_is_blocked_the_hypothesis_ends(beam):
    model = make_model(vocab=6)
    for [best] in search(model, beam=beam, no_repeat_ngram=1, min_length=50, max_length_offset=60):
        assert sorted(best.ids) == [1, 2, 4, 5]
        assert math.isfinite(best.score)


@pytest.mark.parametrize("beam", [1, 3])
def test_length_rules(beam):
    model = make_model()
    beams = search(model, beam=beam, min_length=4, max_length_ratio=0.5, max_length_offset=4)
    for source, [best] in zip(SOURCES, beams, strict=True):
        assert 4 <= len(best.ids) <= len(source) // 2 + 4
    limits = length_limits([Tokens.from_lists([[5, 3], []])], 1.5, 0)
    assert limits.tolist() == [3, 1]
    context = Tokens.from_lists([[], [5, 6, 7, 3]])
    assert length_limits([Tokens.from_lists([[5, 3], []]), context], 1.5, 0).tolist() == [3, 6]


def test_the_model_keeps_its_mode():
    model = make_model().train()
    model.encoder.eval()
    search(model, max_length_offset=2)
    assert model.training
    assert not model.encoder[0].training


def test_a_model_can_be_trained_after_long_decoding():
    """The table of sinusoids grows while no gradient is recorded."""
    model = make_model(vocab=6, sharpness=0.1).requires_grad_()
    source = Tokens.from_lists(SOURCES[:1])
    [[best]] = search(model, SOURCES[:1], beam=1, min_length=300, max_length_offset=300)
    assert len(best.ids) >= 300
    target = Tokens.from_lists([[2, *best.ids]])
    model.logits(model(Batch([source], target, target.ids))).sum().backward()


@pytest.mark.parametrize("beam", [1, 3])
def test_nothing_to_decode(beam):
    nothing, mixed, [[alone]] = (
        search(make_model(), sources, beam=beam, max_length_offset=2)
        for sources in ([[], []], [[], SOURCES[0]], SOURCES[:1])
    )
    assert len(nothing) == 2
    assert mixed[1][0].ids == alone.ids


def test_decoding_under_autocast():
    model = make_model().float()
    with torch.autocast("cpu", torch.bfloat16):
        beams = search(model, beam=3)
    assert all(math.isfinite(best.score) for [best] in beams)


@pytest.mark.parametrize("vocab", [2, 64, 1000, 1031])
def test_top_candidates_equal_a_full_sort(vocab):
    torch.manual_seed(0)
    logits, before = torch.randn(3 * 4, vocab), torch.randn(3, 4)
    logits[3, : vocab // 2] = -math.inf
    before[1, 1:] = -math.inf
    best, parent, token = top_candidates(logits, before, 9)
    sums = logits.view(3, 4, vocab) + before[:, :, None]
    expected = sums.flatten(1).sort(dim=1, descending=True).values[:, :9]
    assert torch.equal(best, expected)
    rows = torch.arange(3)[:, None]
    assert torch.equal(sums[rows, parent, token], best)


def test_repeats_by_hand():
    logits = torch.zeros(2, 6)
    forbid_repeats(logits, torch.tensor([[4, 5, 4, 5, 4], [1, 2, 3, 4, 5]]), 3)
    assert logits[0].tolist() == [0, 0, 0, 0, 0, -math.inf]
    assert logits[1].tolist() == [0] * 6


def test_hypotheses_end_where_learned_positions_do():
    sides = {f"{side}_positions": "learned" for side in ("source", "target")}
    torch.manual_seed(0)
    model = Seq2Seq(TransformerConfig(preset="tiny", d_model=16, max_positions=6, **sides), 12, 12).eval()
    with torch.no_grad():
        model.target_embedding.table.weight[3].zero_()  # the end is never likely
    beams = search(model, [[7, 3], [8, 9, 3]], beam=2, max_length_ratio=0.0, max_length_offset=50)
    assert max(len(hypotheses[0].ids) for hypotheses in beams) == 5
