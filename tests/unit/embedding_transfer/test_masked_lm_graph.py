"""Masked language models: which stages trials share, and which settings contradict each other."""

import pytest

from trainables.embedding_transfer import Config, stage_graph
from trainables.embedding_transfer.config import MASKED_LM_METHODS as METHODS
from trainables.embedding_transfer.config import VECTOR_METHODS

TEXT = {"corpus": "conlang", "task": "monolingual"}
DATA = {
    "upstream": {**TEXT, "domain": "a", "train": 50},
    "downstream": {**TEXT, "domain": "b", "train": 20},
}
OWN = {"model": {}, "upstream_tokenizer": {"vocab_size": 300}, "downstream_tokenizer": {"vocab_size": 300}}


def graph(method="patt_eg", seed=1, splits=("dev", "test"), **changes):
    parts = {"data": DATA, "masked_lm": OWN, "transfer": {"method": method}} | changes
    return stage_graph(Config(**parts), seed=seed, splits=splits)


def stage(name, *arguments, **changes):
    return graph(*arguments, **changes).find(name)


@pytest.mark.parametrize("method", METHODS)
def test_every_arm_and_seed_shares_the_upstream_model(method):
    assert stage("upstream", method, 2) == stage("upstream", "random_init", 1)


def test_arms_have_the_stages_they_need():
    for method in METHODS:
        names = {node.name for node in graph(method).stages}
        assert ("generator" in names) == (method in ("att_eg", "patt_eg")), method
        vectors = {f"downstream_{kind}_vectors" for kind in ("skipgram", "cbow")}
        assert bool(vectors & names) == (method in VECTOR_METHODS), method
        assert ("upstream_skipgram_vectors" in names) == (method == "wechsel")
        assert ("transfer" in names) == (method != "pretrain_finetune")
        assert ("downstream_tokenizer" in names) == (method != "pretrain_finetune")


def test_what_is_masked_changes_what_reads_it():
    rounds = {"masked_lm": {**OWN, "num_scoring_rounds": 2}}
    assert stage("generator", **rounds).config == stage("generator").config
    assert stage("scores") != stage("scores", **rounds)


def test_a_new_vocabulary_leaves_the_upstream_alone():
    other = {"masked_lm": {**OWN, "downstream_tokenizer": {"kind": "unigram", "vocab_size": 200}}}
    assert stage("generator") == stage("generator", **other)
    assert stage("transfer") != stage("transfer", **other)


def test_a_local_checkpoint_is_known_by_its_bytes(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1")
    checkpoint = {"masked_lm": {"checkpoint": str(tmp_path)}}
    before = stage("upstream", **checkpoint)
    assert before == stage("upstream", **checkpoint)
    (tmp_path / "model.safetensors").write_bytes(b"22")
    assert before != stage("upstream", **checkpoint)
    with pytest.raises(ValueError, match="a directory has no revisions"):
        graph(masked_lm={"checkpoint": str(tmp_path), "revision": "v1"})


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"data": {**DATA, "upstream": {"corpus": "conlang"}}}, ["data.upstream", "source 0"]),
        ({"decode": {"beam": 2}}, ["masked_lm and decode"]),
        ({"model": {"d_model": 32}}, ["masked_lm and model"]),
        ({"tokenizers": {"downstream": {"vocab_size": 99}}}, ["masked_lm and tokenizers"]),
        ({"transfer": {"method": "single_run"}}, ["transfer.method is single_run with masked_lm"]),
        ({"transfer": {"sides": "both"}}, ["masked_lm and transfer.sides"]),
        ({"generator": {"decoder_rates": {"split": 0.1}}}, ["generator.decoder_rates"]),
        ({"downstream": {"num_bleu_sentences": 5}}, ["downstream.num_bleu_sentences"]),
        ({"masked_lm": {}}, ["checkpoint", "model"]),
        ({"masked_lm": {**OWN, "checkpoint": "owner/name"}}, ["checkpoint", "model"]),
        (
            {"masked_lm": {"checkpoint": "a/b", "upstream_tokenizer": {}}},
            ["upstream_tokenizer", "checkpoint"],
        ),
        ({"masked_lm": {"model": {}}}, ["model", "upstream_tokenizer"]),
        ({"masked_lm": {**OWN, "revision": "v1"}}, ["revision", "model"]),
        ({"masked_lm": {**OWN, "is_body_trained": False}}, ["is_body_trained", "model"]),
        ({"masked_lm": {**OWN, "masking": {"masked": 0.8, "replaced": 0.3}}}, ["masked 0.8", "replaced 0.3"]),
        ({"masked_lm": {**OWN, "model": {"d_model": 6, "num_heads": 4}}}, ["d_model 6", "num_heads 4"]),
    ],
)
def test_contradictions_are_refused_when_read(changes, messages):
    with pytest.raises(ValueError) as refused:
        Config(**({"data": DATA, "masked_lm": OWN} | changes))
    assert all(message in str(refused.value) for message in messages)
