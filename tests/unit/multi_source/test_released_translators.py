"""mBART, mBART-50, M2M-100 and NLLB as the pretrained model: formats, languages by name, output."""

from __future__ import annotations

import json

import pytest
import torch

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.artifact import read_lines
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages.run.released_stages import language_id
from nlgraft.stages.run.text_stages import open_tokenizer, read_encoded
from nlgraft.stages.run.translation_stages import HYPOTHESES_FILE
from nlgraft.stages.seq2seq_graph import TRANSLATE
from nlgraft.study.public import Study
from nlgraft.text.corpora import read_corpus
from nlgraft.training.data import Seq2SeqData
from nlgraft.training.models import read_model
from tests.released_translators import FAMILIES, check_alike, write_multilingual
from tests.tiny_checkpoints import LINES
from tests.unit.stages.runs import made
from trainables.multi_source import Config, stage_graph

TRAIN = {"max_steps": 2, "batch_tokens": 800, "warmup_steps": 1, "peak_lr": 0.01}
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


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_logits_and_translations_are_those_of_transformers(family, checkpoints, tmp_path):
    """What our model reads of a line is what their tokenizer makes of it, by the row of each token."""
    languages, directory = FAMILIES[family][2], checkpoints / family
    graph, store = graph_of(directory, languages), ArtifactStore.open(str(tmp_path))
    model = read_model(made(store, graph.find("upstream"))).eval()
    encoded = read_encoded(made(store, graph.find("task_encoded")), "dev")
    generation = TRANSLATE.settings_of(graph.find("translation_dev"))
    view = generation.view.model_copy(update={"sources": generation.view.sources[:1]})
    batch = Seq2SeqData(encoded, view, batch_tokens=10_000).batch(torch.arange(6).numpy(), 0)
    corpus = read_corpus(made(store, graph.find("task_corpus")) / "dev")
    check_alike(directory, family, model, batch, (corpus.sources[0], corpus.target), generation.generation)


@pytest.mark.parametrize("family", ["nllb", "m2m_100"])
def test_a_study_on_two_sources_runs_to_the_end(family, checkpoints, tmp_path):
    languages, directory = FAMILIES[family][2], checkpoints / family
    document = settings_of(directory, languages)
    study = {
        "name": "released",
        "system": "trainables.multi_source",
        "data": document.pop("data"),
        "base": document,
        "objective": {"metric": "dev/bleu", "direction": "maximize"},
        "seeds": [1],
    }
    assert len(Study.from_dict(study).plan().trials) == 1
    store = ArtifactStore.open(str(tmp_path))
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
        view = TRANSLATE.settings_of(graph_of(checkpoints / family, languages).find("translation_dev")).view
        if place == "first":
            assert [(side.prefix, side.suffix) for side in view.sources] == [((5,), (3,)), ((6,), (3,))]
            assert (view.target.prefix, view.target.suffix, view.target_start) == ((6,), (3,), 3)
        else:
            assert [(side.prefix, side.suffix) for side in view.sources] == [((), (3, 5)), ((), (3, 6))]
            assert (view.target.prefix, view.target_start) == ((), 6)
