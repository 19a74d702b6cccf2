"""Invariant F36 for decoding: every switch changes hypotheses or their search; three papers' rules."""

from functools import partial

import pytest

from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.translation import translate
from nlgraft.nn.batch import Tokens
from nlgraft.nn.generation import beam_search, length_limits
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.text.batches import Ragged
from tests.tiny_models import SOURCES, tiny_decoder

SHORT = {"max_length_offset": 6}


make_model = partial(tiny_decoder, seed=2, sharpness=2, end_bias=-0.5)


def searched(**settings):
    """Hypotheses, and the number of sentences encoded at once."""
    model, sizes = make_model(), []
    model.encoder[0].register_forward_pre_hook(lambda _, args: sizes.append(len(args[0].states)))
    translated = translate(model, Inputs([Ragged.of(SOURCES)]), GenerationConfig(**settings))
    return translated.hypotheses, sizes


BEAM = {
    "beam": (SHORT, {"beam": 2}),
    "num_return": (SHORT, {"num_return": 3}),
    "max_length_ratio": ({"max_length_offset": 2}, {"max_length_ratio": 0.0}),
    "max_length_offset": (SHORT, {"max_length_offset": 1}),
    "min_length": (SHORT, {"min_length": 5}),
    "length_penalty": (SHORT, {"length_penalty": "average"}),
    "alpha": (SHORT, {"alpha": 2.0}),
    "no_repeat_ngram": ({"max_length_offset": 20, "min_length": 15}, {"no_repeat_ngram": 2}),
    "stopping": ({**SHORT, "beam": 2, "alpha": 2.0}, {"stopping": "exact"}),
    "start_id": (SHORT, {"start_id": 7}),
    "end_id": (SHORT, {"end_id": 8}),
    "forced_ids": (SHORT, {"forced_ids": (7,)}),
    "batch_sentences": (SHORT, {"batch_sentences": 2}),
}


@pytest.mark.parametrize("switch", list(BEAM))
def test_no_switch_of_beam_search_does_nothing(switch):
    base, change = BEAM[switch]
    assert searched(**base) != searched(**{**base, **change})


def test_every_switch_is_tested_and_none_acts_by_itself():
    assert set(BEAM) == set(GenerationConfig.model_fields)
    assert searched(**SHORT) == searched(**SHORT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_return": 6}, ("num_return", "beam")),
        ({"length_penalty": "none", "alpha": 1.0}, ("alpha", "length_penalty")),
        (
            {"max_length_ratio": 0.0, "max_length_offset": 20, "min_length": 21},
            ("min_length", "max_length_offset"),
        ),
    ],
)
def test_contradictions_are_refused(settings, message):
    """The message names both settings."""
    with pytest.raises(ValueError) as caught:
        GenerationConfig(**settings)
    assert all(name in str(caught.value) for name in message)


@pytest.mark.parametrize(
    ("paper", "settings", "limits", "shortest"),
    [
        ("trice: source + 50", {}, [55, 53], 0),
        (
            "prlm_fusion: fairseq's 0 x source + 200",
            {"max_length_ratio": 0.0, "max_length_offset": 200},
            [200] * 2,
            0,
        ),
        (
            "lm_augmentation: summaries of 60 to 140",
            {"max_length_ratio": 0.0, "max_length_offset": 140, "min_length": 60},
            [140] * 2,
            60,
        ),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_length_rules_of_the_papers(paper, settings, limits, shortest):
    config = GenerationConfig(**settings)
    sources = Tokens.from_lists(SOURCES[:2])
    assert length_limits([sources], config.max_length_ratio, config.max_length_offset).tolist() == limits
    assert config.min_length == shortest
    for end_bias in (-60.0, 60.0):  # it never wants to end, or at once
        hypotheses = beam_search(make_model(end_bias=end_bias), [sources], config=config)
        for limit, [best] in zip(limits, hypotheses, strict=True):
            assert len(best.ids) == (limit if end_bias < 0 else shortest)
