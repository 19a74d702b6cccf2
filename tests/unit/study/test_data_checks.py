"""Data of a study is checked before anything runs."""

import re

import pytest
from sacrebleu.metrics.bleu import BLEU

from nlgraft.api import launch
from nlgraft.basics.errors import ContractError, DataError
from nlgraft.pipeline.leases import Leases
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.runs.run import Place, Run
from nlgraft.stages import kind_checks, text_graph
from nlgraft.study.data.design import cells
from nlgraft.study.planning.planner import check_cells, check_data
from nlgraft.study.public import Study
from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig
from tests.contract.toy_arms import study_of
from tests.contract.toys.multi_source import ARMS as TRICE_ARMS
from tests.contract.toys.vocabulary_transfer import ARMS

STUDY = {
    "name": "own-text",
    "system": "examples.minimal_system",
    "data": {
        "corpus": "files",
        **{
            split: {"sources": [f"{split}.1", f"{split}.2"], "target": f"{split}.t"}
            for split in ("train", "dev", "test")
        },
    },
    "base": {"tokenizer": {"vocab_size": 20_000}},
    "objective": {"metric": "dev/bleu", "direction": "maximize"},
    "seeds": [1, 2],
}


@pytest.fixture
def study(tmp_path, monkeypatch):
    for split in ("train", "dev", "test"):
        for side in ("1", "2", "t"):
            lines = [f"word{n} of {side} in {split}" for n in range(50)]
            (tmp_path / f"{split}.{side}").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return Study.from_dict(STUDY)


def test_a_plan_shows_the_corpus_and_warns_once_of_a_large_vocabulary(study):
    plan = study.plan()
    (report,) = plan.to_json()["corpora"].values()
    assert {split: counts["num_examples"] for split, counts in report.items()} == {
        "train": 50,
        "dev": 50,
        "test": 50,
    }
    (warning,) = [warning for warning in plan.warnings if "vocab_size" in warning]
    assert "vocab_size is 20000, but the training text has only 56 distinct words" in warning


def test_a_plan_lists_the_mistakes_of_all_files(study, tmp_path):
    (tmp_path / "dev.2").write_text("too short\n")
    (tmp_path / "train.t").write_bytes(b"\xff\n" * 50)
    with pytest.raises(DataError) as caught:
        study.plan()
    message = str(caught.value)
    assert "train.t, line 1: not UTF-8" in message
    assert "dev: files differ in their number of lines" in message
    assert len(message.split("\n")) == 2


@pytest.fixture
def store(tmp_path):
    return ArtifactStore.open(tmp_path / "store")


def put(store, stage):
    """Publish an artifact of a stage without making it."""
    scratch = store.new_scratch(stage)
    (scratch / "x").write_text("x")
    store.publish(stage, scratch)


def test_a_corpus_that_the_store_holds_is_not_read_again(study, store):
    assert check_cells(study, cells(study), store).corpora
    (corpus,) = [stage for stage in study.plan().trials[0].graph.stages if "corpus" in stage.locations]
    put(store, corpus)
    assert check_cells(study, cells(study), store).corpora == {}


def test_a_check_that_does_not_exist_is_named():
    with pytest.raises(ContractError, match="has no function 'none'"):
        check_data([StageGraph(Stage(name="a", run="a.b:c", check="nlgraft.stages.kind_checks:none"))])
    with pytest.raises(ContractError, match="check='none' is not of the form"):
        Stage(name="a", run="a.b:c", check="none")


def large_vocabulary(corpus):
    return text_graph.tokenizer("large", LearnedTokenizerConfig(vocab_size=20_000), {"bitext": corpus})


@pytest.mark.parametrize("num_train, is_made", [(50, True), (20_000, True), (20_001, False)])
def test_a_constructed_corpus_is_made_up_to_a_size(monkeypatch, num_train, is_made):
    made = []
    monkeypatch.setattr(
        kind_checks,
        "generate",
        lambda config, split: made.append(split) or {"source 0": ["a"], "target": ["b"]},
    )
    corpus = text_graph.corpus("bitext", ConlangConfig(corpus="conlang", train=num_train))
    warnings = check_data([StageGraph(large_vocabulary(corpus))]).warnings
    assert made == ["train", "dev", "test"] * is_made
    assert ["vocab_size is 20000" in warning for warning in warnings][:1] == [True] * is_made


def test_constructed_corpora_that_differ_in_size_alone_are_made_once(monkeypatch):
    made = []

    def counted(config, split):
        made.append((config.task, split, getattr(config, split)))
        return generate(config, split)

    monkeypatch.setattr(kind_checks, "generate", counted)
    configs = [
        ConlangConfig(corpus="conlang", train=20, dev=5, test=5),
        ConlangConfig(corpus="conlang", train=30, dev=4, test=5),
        ConlangConfig(corpus="conlang", train=20, dev=5, test=5, domain="b"),
    ]
    stages = [text_graph.corpus(f"bitext{number}", config) for number, config in enumerate(configs)]
    findings = check_data([StageGraph(large_vocabulary(stage)) for stage in stages])
    sizes = [("train", 30), ("dev", 5), ("test", 5), ("train", 20), ("dev", 5), ("test", 5)]
    assert sorted(made) == sorted(("translation", *each) for each in sizes)
    for stage, config in zip(stages, configs, strict=True):
        for split in ("train", "dev", "test"):
            read = findings.read[stage.fingerprint][split]
            assert read.streams() == generate(config, split), "as if it had been made alone"


def test_stages_after_a_stored_one_are_checked(store):
    stored, other = (
        text_graph.corpus("bitext", ConlangConfig(corpus="conlang", train=number)) for number in (50, 60)
    )
    put(store, stored)
    for corpus, num_warnings in ((stored, 0), (other, 1)):
        warnings = check_data([StageGraph(stored), StageGraph(large_vocabulary(corpus))], store).warnings
        assert ["vocab_size is 20000" in warning for warning in warnings][:1] == [True] * num_warnings


def test_a_plan_warns_of_chinese_references_and_their_normalisation(study, tmp_path):
    for split in ("dev", "test"):
        (tmp_path / f"{split}.t").write_text("我们在１０月去北京，天气很好。\n" * 50)
    chosen = Study.from_dict({**STUDY, "base": {"score": {"bleu_tokenizer": "13a"}}})
    warnings = "\n".join(chosen.plan().warnings)
    assert "scores: score.bleu_tokenizer is 13a, but the references are Chinese" in warnings
    assert "normalization nmt_nfkc changes the target text" in warnings
    for score in ({"bleu_tokenizer": "zh"}, {}):
        base = {"score": score, "tokenizer": {"normalization": "identity"}}
        better = Study.from_dict({**STUDY, "base": base})
        assert not [text for text in better.plan().warnings if "Chinese" in text or "nfkc" in text]


def test_a_plan_warns_of_scored_text_in_any_other_training_text(tmp_path, monkeypatch):
    """Scored lines stand in the upstream text; those that are left out of the other text are no fault."""
    for name, lines in {
        "train": [f"a line {n}" for n in range(20)],
        "dev": [f"dev line {n}" for n in range(6)],
        "test": [f"test line {n}" for n in range(6)],
        "held": [f"held line {n}" for n in range(6)],
        "more": ["test line 2", "dev line 1", "dev line 4", *(f"more {n}" for n in range(9))],
    }.items():
        (tmp_path / f"{name}.source").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"{name}.label").write_text("".join(f"{'ab'[n % 2]}\n" for n in range(len(lines))))
    monkeypatch.chdir(tmp_path)
    downstream = {s: {"sources": f"{s}.source", "label": f"{s}.label"} for s in ("train", "dev", "test")}
    text = {"train": {"sources": "more.source"}, "dev": {"sources": "held.source"}}
    text["test"] = text["dev"]
    data = {
        "upstream": {"corpus": "files", **text},
        "downstream": {"corpus": "files", **downstream},
        "unlabelled": {"corpus": "files", **text, "max_line_chars": 9000},
    }
    document = study_of("vocabulary_transfer", ARMS["vipi"] | {"data": data}, "dev/accuracy")
    plan = Study.from_dict(document).plan()
    overlaps = [warning for warning in plan.warnings if "training text of" in warning]
    assert [warning.split(";")[0] for warning in overlaps] == [
        "downstream_corpus: dev: 2 of 6 examples have a line in the training text of upstream_corpus",
        "downstream_corpus: test: 1 of 6 examples have a line in the training text of upstream_corpus",
    ]
    shared = {"upstream_corpus": 2, "unlabelled_corpus": 2}
    assert plan.corpora["downstream_corpus"]["dev"]["num_in_other_train"] == shared


def classified(directory, **labels):
    """A study of classification whose files are these labels, with as many lines."""
    for split, rows in labels.items():
        (directory / f"{split}.source").write_text("".join(f"{split} line {n}\n" for n in range(len(rows))))
        (directory / f"{split}.label").write_text("".join(f"{label}\n" for label in rows))
    files = {s: {"sources": f"{s}.source", "label": f"{s}.label"} for s in ("train", "dev", "test")}
    document = study_of("vocabulary_transfer", ARMS["vipi"], "dev/accuracy")
    document["data"] = document["data"] | {"downstream": {"corpus": "files", **files}}
    return document


LABELS = ["a", "b"] * 15


@pytest.mark.parametrize(
    ("labels", "messages"),
    [
        ({}, []),
        ({"train": ["a"] * 30, "dev": ["a"], "test": ["a"]}, ["all 30 examples have the label 'a'"]),
        (
            {"train": ["", " ", *LABELS], "test": ["", *LABELS]},
            ["train: 2 of 32 examples have no label .example 1, 2.", "test: 1 of 31 examples have no label"],
        ),
        ({"test": ["c", "a", "d"]}, ["test: 2 of 3 examples have a label that train lacks .'c', 'd'."]),
        (
            {"train": [f"{n},a,text {n}" for n in range(30)], "dev": ["0,a,text 0"], "test": ["1,a,text 1"]},
            ["30 examples have 30 distinct labels, such as '0,a,text 0'.*or a column of a table"],
        ),
    ],
)
def test_labels_that_cannot_be_learned_are_refused_by_the_plan(tmp_path, monkeypatch, labels, messages):
    monkeypatch.chdir(tmp_path)
    document = classified(tmp_path, **{"train": LABELS, "dev": LABELS[:6], "test": LABELS[:6], **labels})
    if not messages:
        assert Study.from_dict(document).plan()
        return
    with pytest.raises(DataError) as caught:
        Study.from_dict(document).plan()
    lines = str(caught.value).split("\n")
    assert len(lines) == len(messages)
    for line, message in zip(lines, messages, strict=True):
        assert re.search(f"^downstream_corpus: .*{message}", line)


def test_labels_of_splits_that_are_drawn_anew_count_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = classified(tmp_path, train=["a"] * 12, dev=["b"] * 12, test=["a", "b"] * 6)
    with pytest.raises(DataError, match="all 12 examples have the label 'a'"):
        Study.from_dict(document).plan()
    document["data"] = document["data"] | {"split": {}}
    assert Study.from_dict(document).plan()


def test_text_that_has_the_separator_of_joined_sentences_is_refused_by_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "dev", "test"):
        for side in ("sources", "target", "document"):
            (tmp_path / f"{split}.{side}").write_text(
                "".join(f"{side} {n // 3} {split}\n" for n in range(30))
            )
    (tmp_path / "dev.target").write_text("a <sep> b\n" + "c\n" * 29)
    files = {s: {r: f"{s}.{r}" for r in ("sources", "target", "document")} for s in ("train", "dev", "test")}
    document = study_of("multi_source", TRICE_ARMS["two sentences joined"], "dev/bleu")
    document["data"] = document["data"] | {"task": {"corpus": "files", **files}}
    with pytest.raises(DataError, match="task_joined: dev: 1 of 30 lines of target have '<sep>'"):
        Study.from_dict(document).plan()
    document["base"]["documents"] = "apart"
    assert Study.from_dict(document).plan()


def test_a_missing_bleu_tokenizer_is_an_error_of_the_plan(study, tmp_path, monkeypatch):
    class WithoutMecab(BLEU):
        def __init__(self, tokenize, force):
            if tokenize == "ja-mecab":
                raise RuntimeError("needs MeCab")
            super().__init__(tokenize=tokenize, force=force)

    monkeypatch.setattr("sacrebleu.metrics.bleu.BLEU", WithoutMecab)
    japanese = Study.from_dict({**STUDY, "base": {"score": {"bleu_tokenizer": "ja-mecab"}}})
    with pytest.raises(DataError, match=r"scores: BLEU tokenizer ja-mecab needs `pip install"):
        japanese.plan()
    (tmp_path / "dev.t").write_text("私は東京に行きます。\n" * 50)
    with pytest.raises(DataError, match=r"scores: BLEU tokenizer ja-mecab needs `pip install"):
        study.plan()


def test_a_run_checks_the_data_before_it_starts_anything(study, tmp_path):
    (tmp_path / "test.t").write_text("too short\n")
    with pytest.raises(DataError, match="test: files differ in their number of lines"):
        launch(study)
    assert not (tmp_path / "nlgraft_store" / "mlflow.db").exists()


def test_a_run_tells_the_warnings(study, store, monkeypatch):
    heard = []
    monkeypatch.setattr(Leases, "lock_study", lambda *_, **__: pytest.fail("checked too late"))
    run = Run(study, cells(study), Place(store, on_event=heard.append))
    with pytest.raises(pytest.fail.Exception):
        run.result()
    assert [event.message for event in heard if "vocab_size is 20000" in event.message]
