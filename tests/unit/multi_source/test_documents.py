"""Two sentences translated as one: a model that reproduces every joined reference has a perfect score."""

import json
from dataclasses import replace

import pytest
import torch

from nlgraft.evaluation.artifact import read_lines, write_lines
from nlgraft.evaluation.scores import evaluate_text
from nlgraft.pipeline.stage import Stage
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages.run.seq2seq_stages import HYPOTHESES_FILE
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import EOS
from nlgraft.training.models import read_model
from tests.contract.toys.multi_source import ARMS
from tests.released_translators import write_mbart
from tests.tiny_causal_lms import release
from tests.tiny_checkpoints import LINES
from tests.unit.stages.runs import made
from trainables.multi_source import Config, stage_graph

JOINED = ARMS["two sentences joined"]
DATA = JOINED["data"] | {"max_tokens": 60}


def released_mbart(directory, lines):
    """A directory of cc25's format: pieces, three languages, a mask."""
    size = write_mbart(directory, lines)
    languages = {"first": size + 1, "target": size + 2}
    return {"checkpoint": {"directory": str(directory), "language_ids": languages}}


def released_bert(directory, lines):
    release(directory / "bert", "bert", lines)
    return {"objective": "masked_tokens", "checkpoint": {"directory": str(directory / "bert")}}


def configured(**settings):
    return Config.model_validate_json(json.dumps({**JOINED, "data": DATA, **settings}))


VOCABULARIES = {
    "unigram": lambda *_: {"tokenizer": {"vocab_size": 200}},
    "bpe": lambda *_: {"tokenizer": {"vocab_size": 200, "kind": "bpe"}},
    "mbart": lambda directory, lines: {"upstream": released_mbart(directory, lines)},
    "bert": lambda directory, lines: {"upstream": released_bert(directory, lines)},
}


def reproduce(context):
    """Translate as a model that reproduces every reference it was trained on."""
    tokenizer = open_tokenizer(context.inputs["tokenizer"])
    references = read_corpus(context.inputs["corpus"] / "dev").target
    sampled = {} if context.config["alpha"] is None else {"sample_alpha": context.config["alpha"], "seed": 1}
    lines = tokenizer.decode(tokenizer.encode(references, **sampled))
    write_lines(context.directory / HYPOTHESES_FILE, lines)


@pytest.mark.parametrize(
    ("vocabulary", "alpha"),
    [("unigram", None), ("unigram", 0.1), ("bpe", None), ("bpe", 0.3), ("mbart", None), ("bert", None)],
)
def test_a_model_that_reproduces_every_joined_reference_scores_100(tmp_path, vocabulary, alpha):
    store = ArtifactStore.open(tmp_path / "store")
    corpus = made(store, stage_graph(configured(), seed=1, splits=("dev",)).find("task_corpus"))
    (tmp_path / "released").mkdir()
    settings = VOCABULARIES[vocabulary](tmp_path / "released", read_corpus(corpus / "train").text())
    graph = stage_graph(configured(**settings), seed=1, splits=("dev",))
    inputs = {"tokenizer": graph.find("shared_tokenizer"), "corpus": graph.find("task_joined")}
    perfect = Stage(name="perfect", run=f"{__name__}:reproduce", config={"alpha": alpha}, inputs=inputs)
    cut = replace(graph.find("sentences_dev"), inputs={"translation": perfect})
    kept = read_lines(made(store, cut) / HYPOTHESES_FILE)
    tokenizer = open_tokenizer(store.fetch(inputs["tokenizer"]))
    references = read_corpus(corpus / "dev").target
    assert kept != read_corpus(store.fetch(inputs["corpus"]) / "dev").target, "some have a sentence before"
    # what a vocabulary does to a sentence alone is not the separator's doing: a BERT's moves punctuation
    references = tokenizer.decode(tokenizer.encode(references))
    assert evaluate_text(kept, references, ("bleu",)).scores["bleu"].value == pytest.approx(100)


def test_the_separator_of_a_released_model_begins_as_the_end_of_a_sentence(tmp_path):
    settings = released_mbart(tmp_path, LINES)
    graph = stage_graph(configured(upstream=settings), seed=1, splits=("dev",))
    store = ArtifactStore.open(tmp_path / "store")
    model = read_model(made(store, graph.find("upstream")))
    table = model.source_embedding.state_dict()["table.weight"]
    tokenizer = open_tokenizer(store.fetch(graph.find("shared_tokenizer")))
    assert torch.equal(table[tokenizer.id("<sep>")], table[EOS])


def test_all_arms_of_documents_share_vocabulary_and_pretraining():
    text, upstream = ARMS["trice"]["data"]["text"], ARMS["trice"]["upstream"]
    shared = {"data": DATA | {"text": text}, "upstream": upstream}
    both = {"multi_source": ARMS["previous sentence"]["multi_source"]}
    arms = [{}, {"documents": "apart"}, {"documents": "previous", **both}]
    graphs = [stage_graph(configured(**shared, **arm), seed=1, splits=("dev",)) for arm in arms]
    for name in ("shared_tokenizer", "upstream"):
        assert len({graph.find(name).fingerprint for graph in graphs}) == 1
