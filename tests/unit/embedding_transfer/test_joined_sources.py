"""Passage and answer on one line: the model sees where one ends, and nothing is cut there again."""

import json

import pytest

from nlgraft.pipeline.stage import StageGraph
from nlgraft.stages import text_graph
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.study.planning.planner import check_data
from nlgraft.text.corpora import load_corpus, read_corpus
from nlgraft.text.corpus_config import ConlangConfig, FilesConfig
from tests.contract.toys.embedding_transfer import ARMS
from tests.unit.embedding_transfer.bert_configs import graph_of
from tests.unit.stages.runs import made
from trainables.embedding_transfer import Config
from trainables.embedding_transfer.graph import SOURCE_SEPARATOR

ARM = ARMS["denoising, patt_eg"]


def graph(kind):
    tokenizers = {side: {**settings, "kind": kind} for side, settings in ARM["tokenizers"].items()}
    config = Config.model_validate_json(json.dumps(ARM | {"tokenizers": tokenizers}))
    return graph_of(config)


def joined_dev(store, kind):
    """The corpus's dev lines as they are encoded, and the two sources of each."""
    lines = read_corpus(made(store, graph(kind).find("downstream_corpus")) / "dev").sources
    sources = load_corpus(ConlangConfig(**ARM["data"]["downstream"]))["dev"].sources
    assert len(lines) == 1
    return lines[0], [*zip(*sources, strict=True)]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_learned_vocabulary_keeps_the_separator(kind, store):
    lines, sources = joined_dev(store, kind)
    tokenizer = open_tokenizer(made(store, graph(kind).find("downstream_shared_tokenizer")))
    encoded = tokenizer.encode(lines)
    assert not any(tokenizer.id("<unk>") in row for row in encoded)
    assert [tuple(line.split(SOURCE_SEPARATOR)) for line in tokenizer.decode(encoded)] == sources


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_where_a_vocabulary_lacks_the_separator_its_place_is_still_seen(kind, store):
    """The pretrained vocabulary is of text without it: an unknown token stands there, and only there."""
    lines, sources = joined_dev(store, kind)
    tokenizer = open_tokenizer(made(store, graph(kind).find("upstream_shared_tokenizer")))
    assert SOURCE_SEPARATOR.strip() not in "".join(tokenizer.pieces)
    unknown = tokenizer.id("<unk>")
    for row, (passage, answer) in zip(tokenizer.encode(lines), sources, strict=True):
        assert row.count(unknown) == 1
        place = row.index(unknown)
        ends = tokenizer.decode([row[:place], row[place + 1 :]])
        assert tuple(end.strip() for end in ends) == (passage, answer)


def findings(directory, **streams):
    """What is found in files of three examples, the second of which is given."""
    for name, line in streams.items():
        (directory / name).write_text(f"one {name}\n{line}\nthree {name}\n")
    files = {"sources": [str(directory / name) for name in streams if name != "target"]}
    files["target"] = str(directory / "target")
    config = FilesConfig.model_validate({"corpus": "files", "train": files, "dev": files}, strict=False)
    return check_data([StageGraph(text_graph.corpus("task", config, joined_by=SOURCE_SEPARATOR))]).warnings


def test_sources_that_have_the_separator_get_a_warning(tmp_path):
    """Of several sources alone: one source is not joined, and targets never are."""
    messages = findings(tmp_path, passage="a | b", answer="c", target="d")
    assert [warning.split(";")[0] for warning in messages if "' | '" in warning] == [
        f"task_corpus: {split}: 1 of 3 lines of source 0 have ' | ', which stands between joined lines here: "
        "the text cannot be told from it"
        for split in ("train", "dev")
    ]
    for streams in (
        {"passage": "a | b", "target": "d"},
        {"passage": "a", "answer": "c", "target": "d | e"},
        {"passage": "a|b", "answer": "c", "target": "d"},
    ):
        assert not [warning for warning in findings(tmp_path, **streams) if "' | '" in warning]
