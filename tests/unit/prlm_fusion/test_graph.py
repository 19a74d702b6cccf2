"""What the stages of a trial are and which of them cells share."""

import importlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from nlgraft.basics.errors import DataError
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages import text_graph
from nlgraft.stages.seq2seq_graph import TrainSettings
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config
from tests.contract.toy_arms import arms_of
from tests.contract.toys.prlm_fusion import ARMS
from tests.tiny_models import HIDDEN, hugging_face
from trainables.prlm_fusion.config import Config
from trainables.prlm_fusion.graph import stage_graph, transformer

SHIPPED = sorted((Path(__file__).parents[3] / "search_spaces" / "prlm_fusion").glob("*.yaml"))


def config(**fusion):
    return Config(**{**ARMS["sum"], "fusion": {**ARMS["sum"]["fusion"], **fusion}})


def graph(seed=1, **fusion):
    return stage_graph(config(**fusion), seed=seed, splits=("dev",))


def test_without_branches_it_is_the_plain_transformer():
    """The very training that the platform's pieces give, so the same bits."""
    plain = config(merge="none")
    corpus = text_graph.corpus("downstream", plain.data.downstream)
    tokenizers = text_graph.tokenizers("downstream", plain.tokenizer, {"downstream": corpus})
    text = text_graph.encode("downstream", corpus, tokenizers, max_tokens=plain.data.max_tokens)
    trained = pieces.train(
        "trained", text, TrainSettings(train=plain.train, model=plain.model.transformer()), seed=1
    )
    assert graph(merge="none").find("trained").fingerprint == trained.fingerprint


@pytest.mark.parametrize(
    "system", ["trainables.prlm_fusion", "trainables.lm_augmentation", "examples.minimal_system"]
)
def test_a_metric_that_no_training_measures_cannot_be_the_best(system):
    values = next(iter(arms_of(system).values()))
    with pytest.raises(ValidationError, match="best_metric is 'dev/los'; measured: dev/loss"):
        importlib.import_module(system).Config(**{**values, "train": {"best_metric": "dev/los"}})


@pytest.mark.parametrize("merge", ["gate", "dropnet"])
def test_all_but_the_branches_is_that_of_the_plain_transformer(merge):
    plain, fused = transformer(config(merge="none")), transformer(config(merge=merge, side="both"))
    assert fused.model_copy(update={"contexts": plain.contexts, "fusion": plain.fusion}) == plain


def test_states_are_computed_once_for_all_that_read_the_same():
    def states(seed=1, **fusion):
        return graph(seed, **fusion).find("bert_states").fingerprint

    once = states()
    for same in (
        {"merge": "gate"},
        {"merge": "dropnet", "dropnet_probability": 0.3},
        {"site": "self"},
        {"side": "both"},
        {"dropout": 0.3},
        {"seed": 2},
        {"prlms": ["bert", "electra"]},
    ):
        assert states(**same) == once, same
    assert states(layers="dynamic_cls") == states(layers="dynamic_mean") == states(layers="mean")
    for other in (
        {"layers": -1},
        {"layers": "mean_last_2"},
        {"layers": "scalar_mix"},
        {"weights": "random"},
        {"states": "fp16"},
        {"states": "bf16"},
        {"max_tokens": 8},
    ):
        assert states(**other) != once, other


def test_random_weights_are_those_of_the_pretraining_seed():
    def drawn(trial, **pretraining):
        values = {**ARMS["random weights"], "pretraining": {**ARMS["sum"]["pretraining"], **pretraining}}
        return stage_graph(Config(**values), seed=trial, splits=("dev",)).find("bert_random").fingerprint

    assert drawn(1) == drawn(2)
    assert drawn(1, is_per_seed=True) != drawn(2, is_per_seed=True)


def test_only_stored_states_take_the_live_stream_from_the_training():
    def streams(**fusion):
        return set(graph(**fusion).find("trained").inputs["encoded"].config["streams"])

    assert streams() == {"source 0", "target"}
    for live in ({"states": "live"}, {"is_frozen": False}, {"has_frozen_dropout": True}):
        assert streams(**live) == {"source 0", "target", "context bert"}


def test_the_first_stage_is_frozen_and_the_second_goes_on_from_it():
    second = graph(is_frozen=False, part={}, first_stage={"max_steps": 7}).find("trained")
    first, alone = second.inputs["start"], graph().find("trained")
    assert first.config["train"]["max_steps"] == 7
    assert first.config["model"] == alone.config["model"] != second.config["model"]
    assert first.config["learned"] == alone.config["learned"] != second.config["learned"]
    assert first.inputs == alone.inputs


def test_own_embeddings_are_as_wide_as_the_model_they_stand_for(tmp_path):
    assert transformer(config(weights="own")).contexts["bert"].encoder.width == 16
    hugging_face("gpt2").save_pretrained(tmp_path)
    released = {
        **ARMS["own embeddings"],
        "prlms": {"bert": {"kind": "released", "checkpoint": str(tmp_path)}},
    }
    assert transformer(Config(**released)).contexts["bert"].encoder.width == HIDDEN
    (tmp_path / "config.json").unlink()
    with pytest.raises(DataError, match=r"prlms.bert.checkpoint .* needs its width.*set prlms.bert.width"):
        transformer(Config(**released))
    released["prlms"]["bert"]["width"] = 24
    assert transformer(Config(**released)).contexts["bert"].encoder.width == 24


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_model_of_every_shipped_cell_can_be_described(path, scale, tmp_path):
    """Without the hub: what it does not say offline, the study says."""
    hugging_face("bert").save_pretrained(tmp_path)
    environ = {"NLGRAFT_DATA": "data", "NLGRAFT_CHECKPOINT": str(tmp_path)}
    study = Study.from_yaml(path, overrides=[f"@{scale}"], environ=environ)
    for cell in cells(study):
        made = transformer(resolve_config(study, cell))
        assert len(made.contexts) == len(resolve_config(study, cell).used)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fusion": {"prlms": []}}, "fusion.prlms is empty: name at least one of prlms"),
        ({"fusion": {"prlms": ["bart"]}}, "fusion.prlms names 'bart', but prlms has bert, gpt, electra"),
        ({"fusion": {"prlms": ["bert", "bert"]}}, "names one context twice"),
        ({"fusion": {"merge": "sum", "dropnet_probability": 0.5}}, "no effect with merge 'sum'"),
        ({"fusion": {"merge": "direct", "prlms": ["bert", "gpt"]}}, "one model gives the source embeddings"),
        (
            {"fusion": {"merge": "direct", "weights": "own", "prlms": ["bert"]}},
            "that is the plain Transformer",
        ),
        ({"data": {"downstream": ARMS["sum"]["data"]["downstream"]}}, "data.upstream, its text, is missing"),
        ({"prlms": {"bert": {"kind": "distilbert", "teacher": "gpt"}}}, "no bert among prlms"),
        ({"fusion": {"prlms": ["bert"], "layers": -9}}, "layers is -9, but prlms.bert has . layers"),
        ({"fusion": {"prlms": ["bert"], "layers": "mean_last_4"}}, "layers is mean_last_4, but prlms.bert"),
        ({"model": {"tying": "all"}, "tokenizer": {"is_shared": False}}, "one table needs one vocabulary"),
        ({"pretraining": {"tokenizer": {"kind": "bpe", "dropout": 0.1}}}, "dropout is 0.1: .* leave it out"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        Config(**{**ARMS["sum"], **changes})
