"""Invariants V49 to V51, V54 and V55: text, splits, arms."""

import json
import math
from collections import Counter
from typing import get_args

import numpy as np
import pytest
import torch

from nlgraft.basics.errors import DataError, TrialFailed
from nlgraft.nn.batch import Tokens
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import SPLITS
from nlgraft.text.tokenizers import TOKENIZER_FILE, encode_words
from nlgraft.training.masked_lm_training import read_classifier, read_masked_lm
from nlgraft.vocab.tokenizers.encoding import self_information
from nlgraft.vocab.transfer_plan import TransferPlan
from tests.contract.toys.vocabulary_transfer import ARMS
from tests.tensors import differing
from tests.tiny_masked_lms import letters, masked_lm
from tests.unit.stages.runs import finish, made, run
from trainables.vocabulary_transfer import Config, stage_graph
from trainables.vocabulary_transfer.config import EXCHANGING, Method, SplitConfig
from trainables.vocabulary_transfer.stages import stratified


def test_self_information_by_hand():
    """Invariant V49: six tokens of three kinds are 6 log2 3 bits, four of two kinds 4 bits."""
    old, new = np.array([2, 2, 2]), np.array([0, 2, 0, 2])
    assert self_information(old) == pytest.approx(6 * math.log2(3))
    assert self_information(new) == pytest.approx(4.0)
    assert self_information(new) / self_information(old) == pytest.approx(0.4206, abs=5e-5)


def texts(labels):
    """That many distinct texts."""
    return [f"line {row}" for row in range(len(labels))]


@pytest.mark.parametrize("train", [0.5, 0.8])
def test_splits_keep_the_balance_of_labels(train):
    """Invariant V54: each split has its share of every label, to within one example; no example is lost."""
    labels = [label for label, count in zip("abcd", (401, 99, 37, 8), strict=True) for _ in range(count)]
    splits = stratified(labels, texts(labels), SplitConfig(train=train))
    assert sorted(row for rows in splits.values() for row in rows) == [*range(len(labels))]
    shares = {"train": train, "dev": (1 - train) / 2, "test": (1 - train) / 2}
    for name, rows in splits.items():
        counts = Counter(labels[row] for row in rows)
        for label, count in Counter(labels).items():
            assert abs(counts[label] - shares[name] * count) <= 1, (name, label)
    assert splits == stratified(labels, texts(labels), SplitConfig(train=train))


def test_frequent_labels_are_drawn_in_balance():
    labels = [label for label, count in zip("abcd", (400, 200, 100, 8), strict=True) for _ in range(count)]
    splits = stratified(labels, texts(labels), SplitConfig(num_labels=3, num_examples=70))
    counts = {name: Counter(labels[row] for row in rows) for name, rows in splits.items()}
    assert counts["train"] == {"a": 20, "b": 10, "c": 5}
    assert all(abs(counts["dev"][label] - n) <= 1 for label, n in {"a": 10, "b": 5, "c": 2.5}.items())
    with pytest.raises(DataError, match="label 'd' has 1 examples"):
        stratified(labels, texts(labels), SplitConfig(num_examples=70))


def test_equal_texts_never_stand_in_two_splits():
    """Ten of each text of the first label, one text under both labels: shares hold to within a group."""
    lines = (
        [f"copied {row // 10}" for row in range(200)] + [f"other {row}" for row in range(99)] + ["copied 3"]
    )
    labels = ["a"] * 200 + ["b"] * 100
    rows_by_split = stratified(labels, lines, SplitConfig())
    splits = [{lines[row] for row in rows} for rows in rows_by_split.values()]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 119
    assert sorted(row for rows in rows_by_split.values() for row in rows) == [*range(300)]
    assert [Counter(labels[row] for row in rows)["a"] for rows in rows_by_split.values()] == [100, 50, 50]
    with pytest.raises(DataError, match="label 'a' has 40 examples of 2 texts"):
        stratified(["a"] * 40, ["one"] * 20 + ["other"] * 20, SplitConfig())


def graph(arm, splits=("dev", "test"), **data):
    changed = ARMS[arm] | {"data": ARMS[arm]["data"] | data}
    config = Config.model_validate_json(json.dumps(changed))
    return stage_graph(config, seed=3, splits=splits)


def test_arms_classify_the_same_lines():
    """Invariant V50: one corpus for all arms, and one text for all arms with the new vocabulary."""
    stages = {method: {s.name: s.fingerprint for s in graph(method).stages} for method in get_args(Method)}
    assert len({fingerprints["downstream_corpus"] for fingerprints in stages.values()}) == 1
    assert len({stages[method]["downstream_encoded"] for method in (*EXCHANGING, "from_scratch")}) == 1
    assert len({fingerprints.get("upstream") for fingerprints in stages.values()}) == 2, (
        "all but from_scratch share one"
    )


def test_unlabelled_text_teaches_the_vocabulary_and_the_masked_lm_step():
    """Labels alone come from the other text, which is classified as before."""
    for arm, text in (("vipi", "unlabelled_encoded"), ("old_vocabulary", "old_unlabelled_encoded")):
        made = graph(f"{arm}, unlabelled text")
        read = {stage.name: [each.name for each in stage.inputs.values()] for stage in made.stages}
        assert {"unlabelled_apart", text} <= set(read["intermediate"])
        assert "downstream_corpus" in read["classifier"]
        if arm == "vipi":
            assert read["downstream_tokenizer"] == ["unlabelled_apart"]
            assert "downstream_encoded" in read["classifier"]


def test_nothing_that_is_scored_is_read_without_labels(store, tmp_path):
    """The pooled splits and the unlabelled text share lines; none that is scored is trained on."""
    lines = [f"{word} {number % 40} times" for number, word in enumerate(["one", "other"] * 60)]
    files = {}
    for name, part in (("train", lines[:80]), ("dev", lines[60:100]), ("test", lines[80:])):
        files[name] = {role: str(tmp_path / f"{name}.{role}") for role in ("sources", "label")}
        (tmp_path / f"{name}.sources").write_text("".join(f"{line}\n" for line in part))
        (tmp_path / f"{name}.label").write_text("".join(f"{line.split()[0]}\n" for line in part))
    text = {name: {"sources": paths["sources"]} for name, paths in files.items()}
    unlabelled = {"corpus": "files", **text}
    made_of = {"downstream": {"corpus": "files", **files}, "unlabelled": unlabelled}
    trial = graph("vipi", **made_of, upstream=unlabelled, split={})
    read = {
        stage.name: {split: set(read_corpus(made(store, stage) / split).sources[0]) for split in SPLITS}
        for stage in trial.stages
        if stage.name in ("downstream_split", "unlabelled_apart", "upstream_apart")
    }
    labelled = read.pop("downstream_split")
    assert len(read) == 2
    for scored in ("dev", "test"):
        assert labelled[scored]
        assert labelled[scored].isdisjoint(labelled["train"])
        for other in read.values():
            assert labelled[scored].isdisjoint(other["train"])
    for other in read.values():
        assert labelled["test"].isdisjoint(other["dev"])
        assert other["train"]
    pretrained = {
        stage.name: [input_stage.name for input_stage in stage.inputs.values()] for stage in trial.stages
    }
    assert "upstream_apart" in pretrained["upstream"]
    assert "upstream_corpus" not in pretrained["upstream"], "text of the same files is read apart alone"
    everything = {**made_of, "unlabelled": {"corpus": "files", **dict.fromkeys(text, text["test"])}}
    with pytest.raises(TrialFailed, match=r"data\.downstream is scored on every line of \w+ of data\.unl"):
        made(store, graph("vipi", **everything).find("unlabelled_apart"))


def test_two_vocabularies_and_what_an_exchange_keeps(store):
    """V55: 150 old rows become 160 new ones, the body stays; measures compare the two vocabularies."""
    record, at = finish(store, graph("vipi"))
    before, after = (read_masked_lm(at(name)) for name in ("upstream", "transfer"))
    plan = TransferPlan.load(at("transfer_plan") / "plan-encoder")
    assert (len(before.input_table), len(after.input_table)) == (len(plan.old_surfaces), len(plan))
    assert differing(before, after) <= before.vocabulary_tensors
    lines = read_corpus(at("downstream_corpus") / "test").sources[0]
    new, old = (
        encode_words(at(f"{name}_tokenizer") / TOKENIZER_FILE, lines).ids.values
        for name in ("downstream", "upstream")
    )
    assert record.metrics["compression/tokens"] == pytest.approx(len(new) / len(old))
    corpora = [read_corpus(at("downstream_corpus") / split) for split in ("train", "dev")]
    words = {word for corpus in corpora for line in corpus.sources[0] for word in line.split()}
    assert len(words) <= record.metrics["text/unique_words"]
    cut = run(store, graph("vipi", max_tokens=5))
    measures = ("compression/tokens", "text/tokens_per_line", "text/bits_per_byte")
    assert [cut.metrics[name] for name in measures] == [record.metrics[name] for name in measures], "uncut"
    kept = run(store, graph("old_vocabulary"))
    assert kept.metrics["compression/self_information"] == pytest.approx(1.0)


def test_padding_changes_no_class(store):
    """Invariant V51."""
    _, at = finish(store, graph("vipi", ("dev",)))
    model, _ = read_classifier(at("classifier"), at("transfer"))
    short, long = [2, 9, 11, 3], [2, 9, 10, 11, 12, 13, 14, 3]
    with torch.inference_mode():
        alone = model(Tokens.from_lists([short], 0))
        together = model(Tokens.from_lists([long, short], 0))
    assert torch.allclose(alone[0], together[1], atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_released_encoder_begins_as_it_is_or_afresh(kind, store, tmp_path):
    """Its rows are copied or averaged; from scratch, only its architecture counts."""
    words = letters(tmp_path)
    released = masked_lm(len(words.vocabulary), kind)
    released.model.save_pretrained(tmp_path)
    arm = {
        **ARMS["vipi"],
        "data": {"downstream": ARMS["vipi"]["data"]["downstream"]},
        "masked_lm": {"checkpoint": str(tmp_path), "downstream_tokenizer": {"vocab_size": 160}},
        "upstream": None,
    }
    artifacts = {}
    for method in ("vipi", "from_scratch"):
        config = Config.model_validate_json(json.dumps({**arm, "transfer": {"method": method}}))
        artifacts[method] = finish(store, stage_graph(config, seed=3, splits=("dev",)))[1]
    taken = read_masked_lm(artifacts["vipi"]("released")).state_dict()
    assert not differing(released, taken)
    fresh = read_masked_lm(artifacts["from_scratch"]("fresh"))
    assert len(fresh.input_table) == len(read_masked_lm(artifacts["vipi"]("transfer")).input_table)
    same = [
        name
        for name, tensor in fresh.state_dict().items()
        if tensor.ndim == 2 and tensor.shape == taken[name].shape and torch.equal(tensor, taken[name])
    ]
    assert not [name for name in same if "position_ids" not in name and "token_type_ids" not in name]
