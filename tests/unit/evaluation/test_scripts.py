"""The script of references and the tokenizers that fit it."""

import re

import pytest

from nlgraft.evaluation.scripts import TextTokenizers, choose_tokenizers, misfits, script_of


@pytest.mark.parametrize(
    ("line", "script", "chosen"),
    [
        ("A café opened where two dogs run. " * 9 + "Not so.", "spaced", ("13a", "words")),
        ("Two dogs run over the meadow.", "english", ("13a", "english")),
        ("Zwei Hunde laufen über die Wiese.", "spaced", ("13a", "words")),
        ("Две собаки бегут.", "spaced", ("13a", "words")),
        ("我们在北京 at home", "chinese", ("zh", "characters")),
        ("私は東京に行きます。", "japanese", ("ja-mecab", "characters")),
        ("東京タワー", "japanese", ("ja-mecab", "characters")),
        ("나는 학교에 갑니다", "korean", ("ko-mecab", "words")),
        ("ฉันไปโรงเรียน", "unspaced", ("char", "characters")),
        ("1, 2, 3!", None, ("13a", "english")),
    ],
)
def test_the_script_decides_where_a_study_does_not(line, script, chosen):
    assert script_of([line]) == script
    assert choose_tokenizers([line]) == TextTokenizers(*chosen)
    assert list(misfits(script_of([line]), None, None)) == []
    assert list(misfits(script_of([line]), *chosen)) == [], "what is chosen by the script fits it"


def test_a_rare_accent_leaves_english_english():
    lines = ["The dogs run over the meadow and the cats sleep in the sun."] * 20 + ["A café."]
    assert script_of(lines) == "english"


@pytest.mark.parametrize(
    ("line", "bleu", "rouge", "messages"),
    [
        (
            "我们在北京",
            "13a",
            None,
            ["bleu_tokenizer is 13a.* Chinese.*set zh or char"],
        ),
        (
            "나는 학교에",
            None,
            "english",
            ["rouge_tokenizer is english.* Korean.* set words or char"],
        ),
        ("Two dogs run.", "zh", "characters", ["bleu_tokenizer is zh", "rouge_tokenizer is characters"]),
        ("Zwei Hunde über uns", "13a", "english", ["rouge_tokenizer is english.*letters beyond a to z"]),
    ],
)
def test_a_choice_that_does_not_fit_is_named(line, bleu, rouge, messages):
    texts = list(misfits(script_of([line]), bleu, rouge))
    assert len(texts) == len(messages)
    for text, message in zip(texts, messages, strict=True):
        assert re.search(message, text)
