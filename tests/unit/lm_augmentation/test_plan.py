"""Bitext that stands in the text of the language models is counted when a study is planned."""

import functools

import pytest

from nlgraft.commands.terminal import plan_table
from nlgraft.stages import kind_checks
from nlgraft.study.public import Study
from nlgraft.text.corpus_config import SPLITS, ConlangConfig
from tests.contract.toy_arms import study_of
from tests.contract.toys.lm_augmentation import ARMS

_BITEXT = {"corpus": "conlang", "task": "translation", "train": 1000, "dev": 300, "test": 1000}
_TEXT = {"corpus": "conlang", "task": "monolingual", "train": 20_000, "dev": 300, "test": 1}
DATA = {
    "downstream": _BITEXT,
    "source_text": {**_TEXT, "language": "first"},
    "target_text": {**_TEXT, "language": "target"},
}
"""The text of Tables 1 and 4 at @tiny."""


def study(**changes):
    toy = ARMS["src_elmo"] | {"data": DATA}
    return Study.from_dict(study_of("lm_augmentation", toy, "dev/bleu") | changes)


@pytest.fixture(scope="module", autouse=True)
def one_text_for_all():
    """Text is made once, for plans and for counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind_checks, "generate", functools.cache(kind_checks.generate))
        yield


def lines(config, split):
    return kind_checks.generate(ConlangConfig(**config), split)


def shared(split, bitext=_BITEXT):
    """Examples of bitext with a line in the training text of each language model, counted by sets."""
    examples = [*zip(*lines(bitext, split).values(), strict=True)]
    texts = {side: {*lines(DATA[f"{side}_text"], "train")["source 0"]} for side in ("source", "target")}
    counts = {side: sum(1 for each in examples if text & {*each}) for side, text in texts.items()}
    return {f"{side}_lm_text": number for side, number in counts.items() if number}


def test_constructed_bitext_in_the_text_of_language_models_is_counted(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    plan = study().plan()
    bitext = plan.corpora["downstream_corpus"]
    expected = {split: shared(split) for split in SPLITS}
    assert {split: report["num_in_other_train"] for split, report in bitext.items()} == expected
    assert expected["train"] == {"source_lm_text": 807, "target_lm_text": 1000}
    text = {*lines(_BITEXT, "train")["source 0"]}
    back = sum(line in text for line in lines(DATA["source_text"], "train")["source 0"])
    assert plan.corpora["source_lm_text"]["train"]["num_in_other_train"] == {"downstream_corpus": back}
    scored = {
        f"{split}: {expected[split]['source_lm_text']} of {_BITEXT[split]}" for split in ("dev", "test")
    }
    warned = [warning for warning in plan.warnings if "training text of source_lm_text" in warning]
    assert {warning.removeprefix("downstream_corpus: ").split(" examples")[0] for warning in warned} == scored
    plan_table(plan)
    overlap = "downstream_corpus, train, is also in train of source_lm_text (807), target_lm_text (1000)"
    assert overlap in capsys.readouterr().out


def test_each_size_of_bitext_is_counted_by_itself():
    """Levels of a factor have corpora of one name, which no trial reads together."""
    small = {**_BITEXT, "train": 200}
    levels = {"large": {"data.downstream": _BITEXT}, "small": {"data.downstream": small}}
    factor = {"bitext": {"levels": levels, "baseline": "large"}}
    corpora = study(factors=factor).plan().corpora
    for name, bitext in (("downstream_corpus", _BITEXT), ("downstream_corpus 2", small)):
        report = corpora[name]["train"]
        assert report["num_examples"] == bitext["train"]
        assert report["num_in_other_train"] == shared("train", bitext)
