"""mBART, mBART-50, M2M-100 and NLLB as the pretrained model: formats, languages by name, output."""

import json

import pytest

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.artifact import read_lines
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages.run.released_stages import language_id
from nlgraft.stages.run.seq2seq_stages import HYPOTHESES_FILE
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.stages.seq2seq_graph import TRANSLATE
from nlgraft.study.public import Study
from tests.contract.toy_arms import study_of
from tests.released_translators import FAMILIES, write_multilingual
from tests.small_studies import TRAIN
from tests.tiny_checkpoints import LINES
from tests.unit.stages.runs import made
from trainables.multi_source import Config, stage_graph

TASK = {"corpus": "conlang", "task": "post_editing", "train": 60, "dev": 6, "test": 4}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    where = tmp_path_factory.mktemp("released")
    for family in FAMILIES:
        (where / family).mkdir()
        write_multilingual(where / family, family, LINES)
    return where


def settings_of(directory, languages, **upstream):
    first, target = languages
    return {
        "data": {"task": TASK, "languages": [first, target, target], "max_tokens": 200},
        "upstream": {"checkpoint": {"directory": str(directory), **upstream}},
        "single_source": {"train": TRAIN, "num_bleu_sentences": 4},
        "multi_source": {"train": TRAIN},
        "decode": {"beam": 2, "max_length_offset": 5},
    }


def graph_of(directory, languages, **upstream):
    config = Config.model_validate_json(json.dumps(settings_of(directory, languages, **upstream)))
    return stage_graph(config, seed=1, splits=("dev",))


@pytest.mark.parametrize("family", ["nllb", "m2m_100"])
def test_a_study_on_two_sources_runs_to_the_end(family, checkpoints, tmp_path):
    languages, directory = FAMILIES[family][2], checkpoints / family
    study = study_of("multi_source", settings_of(directory, languages), "dev/bleu")
    assert len(Study.from_dict(study).plan().trials) == 1
    store = ArtifactStore.open(tmp_path)
    graph = graph_of(directory, languages)
    lines = read_lines(made(store, graph.find("translation_dev")) / HYPOTHESES_FILE)
    assert len(lines) == 6
    assert not any(language in line for line in lines for language in languages)
    tokenizer = open_tokenizer(store.fetch(graph.find("shared_tokenizer")))
    assert [tokenizer.id(f"<{language}>") for language in languages] == [5, 6]


def test_languages_are_given_by_id_or_name(checkpoints):
    by_name = graph_of(checkpoints / "nllb", ("eng_Latn", "deu_Latn")).find("upstream")
    tokens = {"en": "eng_Latn", "de": "deu_Latn"}
    named = graph_of(checkpoints / "nllb", ("en", "de"), language_ids=tokens).find("upstream")
    assert by_name.config == named.config
    with pytest.raises(DataError, match="no language 'nld_Latn'; name it as the checkpoint does"):
        language_id(str(checkpoints / "nllb"), "nld_Latn")
    with pytest.raises(DataError, match="no language '▁'"):  # a piece of text is no language
        language_id(str(checkpoints / "m2m_100"), "▁")
    assert language_id(str(checkpoints / "m2m_100"), 7) == 7


def test_tokens_of_a_batch_by_hand(checkpoints):
    """LID x </s> on both sides, the target behind </s>; mBART of 25 languages ends with the language."""
    for family, place in {"nllb": "first", "mbart_50": "first", "m2m_100": "first", "mbart": "last"}.items():
        languages = FAMILIES[family][2]
        graph = graph_of(checkpoints / family, languages)
        settings = TRANSLATE.settings_of(graph.find("translation_dev"))
        view, generation = settings.view, settings.generation
        if place == "first":
            assert [(side.prefix, side.suffix) for side in view.sources] == [((5,), (3,)), ((6,), (3,))]
            assert (view.target.prefix, view.target.suffix, view.target_start) == ((6,), (3,), 3)
            assert (generation.start_id, generation.forced_ids) == (3, (6,))
        else:
            assert [(side.prefix, side.suffix) for side in view.sources] == [((), (3, 5)), ((), (3, 6))]
            assert (view.target.prefix, view.target_start) == ((), 6)
            assert (generation.start_id, generation.forced_ids) == (6, ())
